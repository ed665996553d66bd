//! Rotary embedding (RoPE) of an append: angles, positions and queries.
use super::{Memory, TensorView};

/// Positions of new tokens in their sequences, in device memory. The kernel clamps them to the rows of the
/// table of angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions<M = u64> {
    /// Device address. A multiple of 4, or of 8 if `wide`.
    pub address: M,
    /// Number of elements.
    pub elements: u64,
    /// Whether positions are i64 instead of i32.
    pub wide: bool,
}

impl<M> Positions<M> {
    /// Creates positions: `elements` i32 from `address` on.
    pub const fn i32(address: M, elements: u64) -> Self {
        Positions { address, elements, wide: false }
    }

    /// Creates positions: `elements` i64 from `address` on.
    pub const fn i64(address: M, elements: u64) -> Self {
        Positions { address, elements, wide: true }
    }
}

/// The columns that rotate together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryStyle {
    /// Column `i` with column `i + dims / 2` (GPT-NeoX, Llama in Hugging Face's layout).
    #[default]
    Halves,
    /// Column `2 * i` with column `2 * i + 1` (GPT-J, DeepSeek).
    Interleaved,
}

/// Queries that a launch rotates beside the new keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryQueries<R = u64, W = R> {
    /// Queries: `[1, tokens, heads_q, head_dim]`, with the head dim and the dtype of the keys.
    pub q: TensorView<R>,
    /// Output: the rotated queries, in the shape of `q`. If this view equals `q`, the kernel rotates `q` in
    /// place and touches only the rotated columns. Rows without a token keep their bits.
    pub rotated: TensorView<W>,
}

/// Rotary embedding of new keys, and of queries beside them. Columns `first_column..first_column + dims` of
/// each head rotate by the angles of the token's position; `dims` is twice the number of angles. Values and
/// other columns keep their bits.
///
/// The kernel computes `x * cos - y * sin` and `y * cos + x * sin` in f32 and rounds each result to the
/// tokens' dtype. An e4m3 cache stores this number divided by its scale, so the bits are the bits of a
/// rotation in a launch before the append.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rotary<R = u64, W = R> {
    /// The columns that rotate together.
    pub style: RotaryStyle,
    /// Cosines: `[1, positions, 1, dims / 2]`, f32 or the tokens' dtype. [`crate::rotary`] computes tables.
    pub cos: TensorView<R>,
    /// Sines, with the shape, strides and dtype of `cos`.
    pub sin: TensorView<R>,
    /// The position of each token: a row of `cos` and `sin`.
    pub positions: Positions<R>,
    /// The first column that rotates, a multiple of 8.
    pub first_column: usize,
    /// Queries that also rotate. Tokens without a slot have rotated queries too.
    pub queries: Option<RotaryQueries<R, W>>,
}

impl<R, W> Rotary<R, W> {
    /// Creates a rotation of the first columns, in halves, without queries.
    pub const fn new(cos: TensorView<R>, sin: TensorView<R>, positions: Positions<R>) -> Self {
        Rotary { style: RotaryStyle::Halves, cos, sin, positions, first_column: 0, queries: None }
    }

    /// Creates a rotation by a table `[1, positions, 1, dims]`, whose rows have the cosines first and then
    /// the sines (`cos_sin_cache` of vLLM and FlashInfer).
    pub fn cos_sin(table: TensorView<R>, positions: Positions<R>) -> Self
    where
        R: Memory,
    {
        let mut cos = table;
        cos.shape[3] /= 2;
        let mut sin = cos.behind(cos.shape[3] as u64);
        // A table of an odd number of columns has one sine more than cosines, which validation refuses.
        sin.shape[3] = table.shape[3] - cos.shape[3];
        Self::new(cos, sin, positions)
    }

    /// Sets the columns that rotate together.
    #[must_use]
    pub const fn style(mut self, style: RotaryStyle) -> Self {
        self.style = style;
        self
    }

    /// Sets the first column that rotates: 512 for the rows of a latent cache of 512 + 64 columns.
    #[must_use]
    pub const fn first_column(mut self, column: usize) -> Self {
        self.first_column = column;
        self
    }

    /// Rotates `q` into `rotated`, which may be `q`.
    #[must_use]
    pub fn queries(mut self, q: TensorView<R>, rotated: TensorView<W>) -> Self {
        self.queries = Some(RotaryQueries { q, rotated });
        self
    }

    /// Returns the number of columns that rotate.
    pub const fn dims(&self) -> usize {
        self.cos.shape[3].saturating_mul(2)
    }
}
