//! Tensors in somebody else's memory: a device address, a shape, strides.
use crate::DType;

/// Q, K, V or O in device memory. Its shape is always `[batch, seqlen, heads, head_dim]`, whatever its
/// layout: layouts are strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Device address of element `[0, 0, 0, 0]`. A multiple of 16.
    pub address: u64,
    /// Elements of the buffer from `address` on: strides may reach no further.
    pub elements: u64,
    /// Element type.
    pub dtype: DType,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Elements from one batch, row, head and column to the next. The last is 1, the others are multiples of
    /// 8; those of extents of 1 are ignored. An input may repeat itself with a stride of 0.
    pub strides: [i64; 4],
}

impl TensorView {
    /// A view with any strides. Nothing is checked here: planning does, once, with the other tensors.
    pub const fn new(
        address: u64,
        elements: u64,
        dtype: DType,
        shape: [usize; 4],
        strides: [i64; 4],
    ) -> Self {
        TensorView { address, elements, dtype, shape, strides }
    }

    /// Contiguous `[batch][seqlen][heads][head_dim]`, FlashAttention's layout.
    pub const fn bshd(address: u64, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let [_, s, h, d] = extents(shape);
        let row = h.wrapping_mul(d);
        Self::new(address, elements, dtype, shape, [s.wrapping_mul(row), row, d, 1])
    }

    /// Contiguous `[batch][heads][seqlen][head_dim]`, PyTorch's layout. `shape` is `[batch, seqlen, heads,
    /// head_dim]` here too.
    pub const fn bhsd(address: u64, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let [_, s, h, d] = extents(shape);
        let head = s.wrapping_mul(d);
        Self::new(address, elements, dtype, shape, [h.wrapping_mul(head), d, head, 1])
    }

    /// Q, K and V of one contiguous buffer `[batch][seqlen][heads_q + 2 * heads_k][head_dim]`: first the
    /// query heads of a position, then its key heads, then its value heads. With `heads_q == heads_k`
    /// this is `[batch][seqlen][3][heads][head_dim]`.
    pub fn packed_qkv(
        address: u64,
        elements: u64,
        dtype: DType,
        [batch, seqlen, heads_q, head_dim]: [usize; 4],
        heads_k: usize,
    ) -> [Self; 3] {
        let d = head_dim as i64;
        let row = (heads_q as i64).wrapping_add((heads_k as i64).wrapping_mul(2)).wrapping_mul(d);
        let strides = [(seqlen as i64).wrapping_mul(row), row, d, 1];
        let part = |first_head: usize, heads: usize| {
            let skipped = (first_head as u64).wrapping_mul(head_dim as u64);
            let address = address.wrapping_add(skipped.wrapping_mul(dtype.bytes() as u64));
            Self::new(
                address,
                elements.saturating_sub(skipped),
                dtype,
                [batch, seqlen, heads, head_dim],
                strides,
            )
        };
        [part(0, heads_q), part(heads_q, heads_k), part(heads_q.wrapping_add(heads_k), heads_k)]
    }

    /// Bytes of one element.
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.bytes() as u64
    }
}

/// A shape as strides are computed. Wraps where a product is absurd: the strides are then refused with the
/// shape that made them.
const fn extents(shape: [usize; 4]) -> [i64; 4] {
    [shape[0] as i64, shape[1] as i64, shape[2] as i64, shape[3] as i64]
}

/// Which logarithm a log-sum-exp is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LseUnit {
    /// The natural one (FlashAttention).
    #[default]
    Natural,
    /// Base 2 (FlashInfer).
    Two,
}

/// Where the log-sum-exp of each row is: f32, `-inf` for a row that sees no key. Begin with
/// [`LseView::new`] or [`LseView::contiguous`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LseView {
    /// Device address of element `[0, 0, 0]`. A multiple of 4.
    pub address: u64,
    /// Elements of the buffer from `address` on.
    pub elements: u64,
    /// `[batch, heads, seqlen]`, those of Q.
    pub shape: [usize; 3],
    /// Elements from one batch and from one head to the next.
    pub strides: [i64; 2],
    /// Elements from one row to the next: 1, but in a [`crate::Merge`] any.
    pub row_stride: i64,
    /// Which logarithm: the natural one, but in a [`crate::Merge`] any.
    pub unit: LseUnit,
}

impl LseView {
    /// Natural logarithms, rows contiguous, batches and heads with any strides.
    pub const fn new(address: u64, elements: u64, shape: [usize; 3], strides: [i64; 2]) -> Self {
        LseView { address, elements, shape, strides, row_stride: 1, unit: LseUnit::Natural }
    }

    /// Sets the distance of two rows: `[rows][heads]` in memory is `strides` of `[_, 1]` and a `row_stride`
    /// of `heads`.
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

    /// Contiguous `[batch][heads][seqlen]`.
    pub const fn contiguous(address: u64, elements: u64, shape: [usize; 3]) -> Self {
        let (heads, seqlen) = (shape[1] as i64, shape[2] as i64);
        Self::new(address, elements, shape, [heads.wrapping_mul(seqlen), seqlen])
    }
}
