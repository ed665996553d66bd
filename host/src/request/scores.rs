//! Transformations of scores before the softmax ([`Scores`]).
use crate::DType;

/// Transformations of scores before the softmax: `softcap * tanh(scale * q k^T / softcap) - alibi + bias`,
/// and attention sinks. The default is a scale of `1 / sqrt(head_dim)` and no other transformation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Scores<M = u64> {
    /// Factor of the scores, above 0; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// With a softcap, scores become `softcap * tanh(score / softcap)`; `None` is off.
    pub softcap: Option<f32>,
    /// ALiBi: scores fall with the distance of key and query, before the mask.
    pub alibi: Option<AlibiSlopes<M>>,
    /// Attention sinks: one logit per query head. A sink has no key.
    pub sinks: Option<Sinks<M>>,
    /// An additive bias: one number per query and key.
    pub bias: Option<Bias<M>>,
}

/// Setters of [`Scores`], and of requests that contain [`Scores`]. The setter of a field has the field's
/// name.
macro_rules! score_setters {
    ($memory:ident $($scores:ident)?) => {
        /// Sets the factor of the scores, above 0. The default is `1 / sqrt(head_dim)`.
        pub const fn scale(mut self, scale: f32) -> Self {
            self.$($scores.)?scale = Some(scale);
            self
        }

        /// Sets the softcap: scores become `softcap * tanh(score / softcap)`. 0 turns it off, as in
        /// FlashAttention.
        pub const fn softcap(mut self, softcap: f32) -> Self {
            self.$($scores.)?softcap = if softcap == 0.0 { None } else { Some(softcap) };
            self
        }

        /// Sets ALiBi slopes: scores fall with the distance of key and query, before the mask.
        pub const fn alibi(mut self, alibi: AlibiSlopes<$memory>) -> Self {
            self.$($scores.)?alibi = Some(alibi);
            self
        }

        /// Adds attention sinks, one logit per query head.
        pub const fn sinks(mut self, sinks: Sinks<$memory>) -> Self {
            self.$($scores.)?sinks = Some(sinks);
            self
        }

        /// Adds a bias to the scores, before the mask.
        pub const fn bias(mut self, bias: Bias<$memory>) -> Self {
            self.$($scores.)?bias = Some(bias);
            self
        }
    };
}
pub(crate) use score_setters;

impl<M: Copy> Scores<M> {
    /// Returns a scale of `1 / sqrt(head_dim)` and no other transformation.
    pub const fn new() -> Self {
        Scores { scale: None, softcap: None, alibi: None, sinks: None, bias: None }
    }

    score_setters!(M);
}

/// Attention sinks: one logit per query head, f32 in device memory. The kernel adds `exp(logit)` to the sum
/// of each row's exponentials, so keys get less weight. Sinks are neither scaled nor capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sinks<M = u64> {
    /// Device address. A multiple of 4.
    pub address: M,
    /// Number of elements of the buffer, at least one per query head.
    pub elements: u64,
}

/// ALiBi slopes (Press, Smith and Lewis, 2022), f32 in device memory, of any sign. The kernel subtracts
/// `slope * |i + seqlen_k - seqlen_q - j|` from the scaled and capped score of query `i` and key `j`. The
/// factor behind `slope` is the distance of `j` from the query's [position](crate::request::Alignment).
/// FerroFlash does not check that slopes are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlibiSlopes<M = u64> {
    /// Device address. A multiple of 4.
    pub address: M,
    /// Number of elements of the buffer from `address` on. Strides must stay within these elements.
    pub elements: u64,
    /// Distance in elements from one sequence to the next sequence, and from one query head to the next query
    /// head. If a distance is 0, all sequences, or all heads, share a slope.
    pub strides: [i64; 2],
}

impl<M> AlibiSlopes<M> {
    /// Creates slopes `[heads]`, contiguous, shared by all sequences.
    pub const fn new(address: M, elements: u64) -> Self {
        AlibiSlopes { address, elements, strides: [0, 1] }
    }

    /// Sets the strides. With strides `[heads, 1]`, slopes are `[sequences][heads]`, contiguous.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 2]) -> Self {
        self.strides = strides;
        self
    }
}

/// An additive bias in device memory, such as T5's relative positions. The kernel adds element `[b, h, i,
/// j]` to the scaled and capped score of query `i` and key `j`. Query 0 and key 0 are the first of their
/// sequence, for varlen sequences and KV caches too. `-inf` hides a key, as a mask does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bias<M = u64> {
    /// Device address of element `[0, 0, 0, 0]`. A multiple of 4.
    pub address: M,
    /// Number of elements of the buffer from `address` on. Strides must stay within these elements. Kernels
    /// read rows in words of 4 bytes: a row with an odd number of 16-bit elements has one more element in
    /// memory.
    pub elements: u64,
    /// f16, bf16 or f32, independent of the queries' dtype.
    pub dtype: DType,
    /// `[batch, heads, seqlen_q, seqlen_k]`. The first three extents may be 1, which broadcasts the bias. For
    /// varlen sequences and KV caches, `batch` counts sequences, and `seqlen_q` and `seqlen_k` are the
    /// longest sequence's.
    pub shape: [usize; 4],
    /// Strides in elements: from one batch, head, query and key to the next. The last stride is 1. The other
    /// strides are multiples of 4 bytes, or 0. A dimension of extent 1 ignores its stride.
    pub strides: [i64; 4],
}

impl<M> Bias<M> {
    /// Creates a view with any strides. Planning checks the view.
    pub const fn new(address: M, elements: u64, dtype: DType, shape: [usize; 4], strides: [i64; 4]) -> Self {
        Bias { address, elements, dtype, shape, strides }
    }

    /// Sets the strides, in elements: from one batch, head, query and key to the next.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 4]) -> Self {
        self.strides = strides;
        self
    }

    /// Creates a contiguous view `[batch][heads][seqlen_q][row]`. Rows lie `row` elements apart. Kernels use
    /// the first `shape[3]` elements of a row.
    pub const fn rows(address: M, elements: u64, dtype: DType, shape: [usize; 4], row: usize) -> Self {
        let [_, heads, queries, _] = shape;
        let (heads, queries, row) = (heads as i64, queries as i64, row as i64);
        let head = queries.wrapping_mul(row);
        Self::new(address, elements, dtype, shape, [heads.wrapping_mul(head), head, row, 1])
    }

    /// Returns the extents in memory: the shape, where a stride of 0 counts as an extent of 1. The gradient
    /// of a bias has the bias' extents.
    pub fn extents(&self) -> [usize; 4] {
        std::array::from_fn(|dim| if dim < 3 && self.strides[dim] == 0 { 1 } else { self.shape[dim] })
    }
}
