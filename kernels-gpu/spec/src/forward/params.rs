//! Parameters of a forward kernel: plain data without padding, with equal bytes on both sides.
use crate::{FastDiv, Lse, PerHead, Tensor, TileOrder};

/// Query `i` sees key `j` if `i + shift - left <= j <= i + shift + right`; both ends are inclusive.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// `seqlen_k - seqlen_q` for bottom-right alignment (FlashAttention's); 0 for top-left alignment.
    pub shift: i32,
    /// Number of keys before the position that the query sees; [`Window::UNBOUNDED`] for all keys.
    pub left: i32,
    /// Number of keys after the position that the query sees; 0 for a causal mask, [`Window::UNBOUNDED`] for
    /// all keys.
    pub right: i32,
}
impl Window {
    /// No bound: more than the maximum number of keys, and so small that sums with it do not overflow.
    pub const UNBOUNDED: i32 = 1 << 30;
}

/// Parameters of a forward kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FwdParams {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Output, with the rows and heads of `q`.
    pub o: Tensor,
    /// LSE of each row, natural logarithm.
    pub lse: Lse,
    /// The largest score of each row, as the softmax sees it, without sinks, with the strides of `lse`. Only
    /// kernels for dense tensors store it. `slack` must then be 0, and `lse` must exist: it may be the same
    /// memory, because kernels store the LSE first.
    pub max_logits: Lse,
    /// The window of the mask. [`crate::Full`] kernels ignore it; [`crate::Causal`] kernels read `shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap, `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`: scores become `softcap * tanh(score * scale / softcap)`. 0 means no softcap; only
    /// kernels of [`crate::Local`] and of [`crate::Bits`] read this field.
    pub softcap: f32,
    /// A row's running maximum may lag behind its largest score by this number (log2) before the kernel
    /// rescales O: [`FwdParams::SLACK`], or 0 for exact maxima.
    pub slack: f32,
    /// Padding: 0.
    pub reserved: u32,
    /// The order of work tiles.
    pub order: TileOrder,
    /// ALiBi slopes of query heads: kernels subtract `slope * |i + shift - j|` from a scaled score before
    /// they mask it. `base` is 0 without slopes; only [`crate::Local`] kernels read this field.
    pub alibi: PerHead,
}
contract::no_padding! {
    Window { shift, left, right }
    FwdParams { q, k, v, o, lse, max_logits, window, scale_log2, softcap, slack, reserved, order, alibi }
}

impl FwdParams {
    /// The slack of a lazy maximum. Probabilities then stay below 256, which is exact in f32 sums and safe in
    /// f16. Kernels that rescale at every block are slower (H200): a lazy maximum is 10 to 15 % faster at D =
    /// 128, and up to 10 % at D = 64 (docs/performance-log.md).
    pub const SLACK: f32 = 8.0;

    /// Query heads per batch.
    pub const fn heads(&self) -> FastDiv {
        self.order.heads
    }

    /// These parameters, for warps that compute a part of the columns. Only some of them store the values of
    /// rows.
    #[inline(always)]
    pub const fn part(&self, q: Tensor, o: Tensor, stores: bool) -> Self {
        let lse = Lse { base: if stores { self.lse.base } else { 0 }, ..self.lse };
        let base = if stores { self.max_logits.base } else { 0 };
        FwdParams { q, o, lse, max_logits: Lse { base, ..self.max_logits }, ..*self }
    }
}
