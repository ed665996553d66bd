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
    /// The window of the mask. [`crate::Full`] kernels ignore it; [`crate::Causal`] kernels read `shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap, `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`: scores become `softcap * tanh(score * scale / softcap)`. 0 means no softcap; only
    /// [`crate::Local`] kernels read this field.
    pub softcap: f32,
    /// The order of work tiles.
    pub order: TileOrder,
    /// ALiBi slopes of query heads: kernels subtract `slope * |i + shift - j|` from a scaled score before
    /// they mask it. `base` is 0 without slopes; only [`crate::Local`] kernels read this field.
    pub alibi: PerHead,
}
contract::no_padding! {
    Window { shift, left, right }
    FwdParams { q, k, v, o, lse, window, scale_log2, softcap, order, alibi }
}

impl FwdParams {
    /// Query heads per batch.
    pub const fn heads(&self) -> FastDiv {
        self.order.heads
    }
}
