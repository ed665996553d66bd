//! Parameters of a forward kernel: plain data, no padding, the same bytes on both sides.
use crate::{FastDiv, Lse, PerHead, Tensor, TileOrder};

/// Query `i` sees key `j` if `i + shift - left <= j <= i + shift + right`; both ends belong to the window.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bottom-right alignment (FlashAttention's): `seqlen_k - seqlen_q`. Top-left: 0.
    pub shift: i32,
    /// Keys to the left; [`Window::UNBOUNDED`] for all.
    pub left: i32,
    /// Keys to the right; 0 is causal, [`Window::UNBOUNDED`] is all.
    pub right: i32,
}
impl Window {
    /// More keys than there can be, and small enough that no sum with it overflows.
    pub const UNBOUNDED: i32 = 1 << 30;
}

/// What a forward kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FwdParams {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Output, as many rows and heads as `q`.
    pub o: Tensor,
    /// Log-sum-exp of each row, natural logarithm.
    pub lse: Lse,
    /// Which keys a query sees. [`crate::Full`] entries read nothing of it, [`crate::Causal`] entries
    /// `shift`.
    pub window: Window,
    /// `scale * log2(e)`, above 0; with softcap `softcap * log2(e)`.
    pub scale_log2: f32,
    /// `scale / softcap`: scores become `softcap * tanh(score * scale / softcap)`. 0 is no softcap; only
    /// [`crate::Local`] entries read it.
    pub softcap: f32,
    /// Which block does which tile.
    pub order: TileOrder,
    /// ALiBi slopes of query heads: a scaled score loses so much for each key between it and its query's
    /// position, `slope * |i + shift - j|`, before the mask. Where `base` is 0 there are none; only
    /// [`crate::Local`] entries read it.
    pub alibi: PerHead,
}

impl FwdParams {
    /// Query heads of a batch.
    pub const fn heads(&self) -> FastDiv {
        self.order.heads
    }
}
