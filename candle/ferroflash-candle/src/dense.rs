//! Dense attention: candle-flash-attn's operation and functions.
use crate::attend::Attend;
use crate::operation::{Attention, Gradients};
#[cfg(feature = "cuda")]
use crate::{forward::forward, run::both, run::run};
#[cfg(feature = "cuda")]
use candle::CudaStorage;
use candle::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

/// candle-flash-attn's operation for `Tensor::apply_op3`. On a GPU, its gradient computes the forward again
/// for the LSE; [`flash_attn`] and its siblings keep the LSE.
pub struct FlashAttn {
    /// Factor of the scores, above 0.
    pub softmax_scale: f32,
    /// ALiBi slopes, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Number of visible keys before a query's position; `None` is all.
    pub window_size_left: Option<usize>,
    /// Number of visible keys after a query's position; `None` is all.
    pub window_size_right: Option<usize>,
    /// The softcap: scores become `softcap * tanh(score / softcap)`. 0, negative values and `None` turn it
    /// off.
    pub softcap: Option<f32>,
}

impl FlashAttn {
    fn operation(&self) -> Attention {
        let FlashAttn { softmax_scale, window_size_left, window_size_right, softcap, .. } = *self;
        let mut attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        (attend.alibi_slopes, attend.softcap) = (self.alibi_slopes.clone(), softcap);
        Attention::new(attend, None)
    }
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.operation().cpu_fwd(q, q_l, k, k_l, v, v_l)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.operation().cuda_fwd(q, q_l, k, k_l, v, v_l)
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor, d_o: &Tensor) -> Result<Gradients> {
        self.operation().bwd(q, k, v, o, d_o)
    }
}

/// Computes `softmax(softmax_scale * q kᵀ) v`. Shapes are `(batch, sequence, heads, head_dim)`. The number of
/// query heads is a multiple of the number of key heads. `causal` aligns bottom-right. `v` may have another
/// head dim than `q` and `k` (MLA: 192 and 128); the output then has the head dim of `v`.
///
/// If the program tracks an input, the forward keeps the LSE for the gradient. On a GPU, the gradient needs
/// the feature `training`. On the CPU, tensors may also be f32.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal.then_some(0))
}

/// Computes [`flash_attn`] with a sliding window. A query sees the keys from `window_size_left` before its
/// own position to `window_size_right` after it. `None` is unbounded.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (None, None);
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    op.operation().apply(q, k, v)
}

/// Computes [`flash_attn`] with ALiBi: one f32 slope per query head.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, causal.then_some(0))
}

/// Computes [`flash_attn_windowed`] with ALiBi.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (Some(alibi_slopes.clone()), None);
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    op.operation().apply(q, k, v)
}

/// Computes [`flash_attn_windowed`] with optional ALiBi and softcap: scores become `softcap * tanh(score /
/// softcap)`; 0 is off.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (alibi_slopes.cloned(), Some(softcap));
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    op.operation().apply(q, k, v)
}

/// Computes attention, and the natural LSE of each row, f32 `(batch, heads, sequence)`. This function has no
/// gradient.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
#[cfg(feature = "cuda")]
pub fn flash_attn_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
    both(run([q, k, v], Some(attend), |inputs| forward(inputs, attend, None, true))?)
}
