//! Tensors in the caller's memory: device address, shape, strides.
use super::Memory;
use crate::DType;

/// Q, K, V or O in device memory. The shape is always `[batch, seqlen, heads, head_dim]`, and in a [KV
/// cache](crate::request::KvPages) `[pages, page, heads, head_dim]`. Strides express the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<M = u64> {
    /// Device address of element `[0, 0, 0, 0]`. A multiple of 16.
    pub address: M,
    /// Elements of the buffer from `address` on. Strides must stay within these elements.
    pub elements: u64,
    /// Element type.
    pub dtype: DType,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Strides in elements: from one batch, row, head and column to the next. The last stride is 1. The other
    /// strides are multiples of 16 bytes. A dimension of extent 1 ignores its stride. An input may have
    /// strides of 0.
    pub strides: [i64; 4],
}

impl<M> TensorView<M> {
    /// Creates a view with any strides. Planning checks the view together with the other tensors, once.
    pub const fn new(address: M, elements: u64, dtype: DType, shape: [usize; 4], strides: [i64; 4]) -> Self {
        TensorView { address, elements, dtype, shape, strides }
    }

    /// Creates a contiguous view `[batch][seqlen][heads][head_dim]`, FlashAttention's layout.
    pub const fn bshd(address: M, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let [_, s, h, d] = extents(shape);
        let row = h.wrapping_mul(d);
        Self::new(address, elements, dtype, shape, [s.wrapping_mul(row), row, d, 1])
    }

    /// Creates a contiguous view `[batch][heads][seqlen][head_dim]`, PyTorch's layout. `shape` stays `[batch,
    /// seqlen, heads, head_dim]`.
    pub const fn bhsd(address: M, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let [_, s, h, d] = extents(shape);
        let head = s.wrapping_mul(d);
        Self::new(address, elements, dtype, shape, [h.wrapping_mul(head), d, head, 1])
    }

    /// Sets the strides, in elements: from one batch, row, head and column to the next.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 4]) -> Self {
        self.strides = strides;
        self
    }

    /// Returns the number of bytes of one element.
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.bytes() as u64
    }
}

impl<M: Memory> TensorView<M> {
    /// Returns Q, K and V in one contiguous buffer `[batch][seqlen][heads_q + 2 * heads_k][head_dim]`: first
    /// the query heads of a position, then its key heads, then its value heads. With `heads_q == heads_k`,
    /// the layout is `[batch][seqlen][3][heads][head_dim]`.
    pub fn packed_qkv(
        address: M,
        elements: u64,
        dtype: DType,
        [batch, seqlen, heads_q, head_dim]: [usize; 4],
        heads_k: usize,
    ) -> [Self; 3] {
        let d = head_dim as i64;
        let row = (heads_q as i64).wrapping_add((heads_k as i64).wrapping_mul(2)).wrapping_mul(d);
        let strides = [(seqlen as i64).wrapping_mul(row), row, d, 1];
        let part = |first_head: usize, heads: usize| {
            let all = Self::new(address, elements, dtype, [batch, seqlen, heads, head_dim], strides);
            all.behind((first_head as u64).wrapping_mul(head_dim as u64))
        };
        [part(0, heads_q), part(heads_q, heads_k), part(heads_q.wrapping_add(heads_k), heads_k)]
    }

    /// Returns keys and values of a KV cache in one contiguous buffer. The layout is
    /// `[pages][2][page][heads][head_dim]`, or with `hnd` `[pages][2][heads][page][head_dim]`.
    pub fn interleaved(address: M, elements: u64, dtype: DType, shape: [usize; 4], hnd: bool) -> [Self; 2] {
        let mut keys = match hnd {
            false => Self::bshd(address, elements, dtype, shape),
            true => Self::bhsd(address, elements, dtype, shape),
        };
        let half = keys.strides[0];
        keys.strides[0] = half.wrapping_mul(2);
        [keys, keys.behind(half as u64)]
    }

    /// Returns the view from this number of elements on.
    pub(crate) fn behind(self, elements: u64) -> Self {
        let address = self.address.behind(elements.wrapping_mul(self.element_bytes()));
        TensorView { address, elements: self.elements.saturating_sub(elements), ..self }
    }
}

/// Converts a shape to i64, to compute strides. Absurdly large shapes wrap; planning then refuses the
/// strides, because they do not match the shape.
const fn extents(shape: [usize; 4]) -> [i64; 4] {
    [shape[0] as i64, shape[1] as i64, shape[2] as i64, shape[3] as i64]
}

/// The unit of an LSE: the base of its logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LseUnit {
    /// Natural logarithm (FlashAttention).
    #[default]
    Natural,
    /// Base 2 (FlashInfer).
    Two,
}

/// The LSE of each row: f32, `-inf` for a row that sees no key. Create it with [`LseView::new`] or
/// [`LseView::contiguous`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LseView<M = u64> {
    /// Device address of element `[0, 0, 0]`. A multiple of 4.
    pub address: M,
    /// Elements of the buffer from `address` on.
    pub elements: u64,
    /// `[batch, heads, seqlen]`, as in Q.
    pub shape: [usize; 3],
    /// Distance in elements from one batch to the next batch, and from one head to the next head.
    pub strides: [i64; 2],
    /// Distance in elements from one row to the next row: 1, except in a [`crate::request::Merge`].
    pub row_stride: i64,
    /// The unit: the natural logarithm, except in a [`crate::request::Merge`].
    pub unit: LseUnit,
}

impl<M> LseView<M> {
    /// Creates a view with the natural logarithm, contiguous rows, and any strides of batches and heads.
    pub const fn new(address: M, elements: u64, shape: [usize; 3], strides: [i64; 2]) -> Self {
        LseView { address, elements, shape, strides, row_stride: 1, unit: LseUnit::Natural }
    }

    /// Sets the distance of two rows. For `[rows][heads]` in memory, `strides` is `[_, 1]` and `row_stride`
    /// is `heads`.
    #[must_use]
    pub const fn row_stride(mut self, row_stride: i64) -> Self {
        self.row_stride = row_stride;
        self
    }

    /// Sets the logarithm's base.
    #[must_use]
    pub const fn unit(mut self, unit: LseUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Creates a contiguous view `[batch][heads][seqlen]`.
    pub const fn contiguous(address: M, elements: u64, shape: [usize; 3]) -> Self {
        let (heads, seqlen) = (shape[1] as i64, shape[2] as i64);
        Self::new(address, elements, shape, [heads.wrapping_mul(seqlen), seqlen])
    }
}
