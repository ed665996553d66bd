//! Dense attention: candle-flash-attn's operation and functions.
use crate::attend::{Attend, Outputs, both, device, run};
use crate::errors::invalid;
use crate::inputs::{Read, Stored, input};
use crate::merge::compute;
use candle::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};
use ferroflash::cudarc::Inputs;
use ferroflash::request::{VarlenKeys, VarlenQueries};

/// candle-flash-attn's operation for `Tensor::apply_op3`.
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

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let FlashAttn { softmax_scale, window_size_left, window_size_right, softcap, .. } = *self;
        let mut attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        (attend.alibi_slopes, attend.softcap) = (self.alibi_slopes.clone(), softcap);
        let outputs = forward([(q, q_l), (k, k_l), (v, v_l)], &attend, None, false)?;
        Ok((outputs.o, outputs.shape))
    }
}

/// The offsets of `n` varlen sequences, which are `n + 1` integers (u32 or i32), and the maximum number of
/// rows per sequence.
#[derive(Clone, Copy)]
pub(crate) struct Starts<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub max_q: usize,
    pub max_k: usize,
}

/// Computes attention on tensors, dense or varlen.
pub(crate) fn forward(
    [q, k, v]: [Stored<'_>; 3],
    attend: &Attend,
    packed: Option<Starts<'_>>,
    lse: bool,
) -> Result<Outputs> {
    let (device, is_packed) = (device(q), packed.is_some());
    let (q, k, v) = (input("q", q, is_packed)?, input("k", k, is_packed)?, input("v", v, is_packed)?);
    let Some(Starts { q: of_q, k: of_k, max_q, max_k }) = packed else {
        return compute(device, Inputs::of(q, k, v), attend, k.shape[1], lse, is_packed);
    };
    if of_q.shape() != of_k.shape() {
        let expected = format_args!("the shape of seqlens_q, {:?}", of_q.shape());
        return Err(invalid("seqlens_k", format_args!("{:?}", of_k.shape()), expected));
    }
    let (of_q, of_k) = (Read::of("seqlens_q", of_q), Read::of("seqlens_k", of_k));
    let sequences = of_q.shape().elem_count().saturating_sub(1);
    let queries = VarlenQueries::new(sequences, of_q.numbers(1)?, max_q);
    let inputs = Inputs::of_varlen(q, k, v, queries, VarlenKeys::new(of_k.numbers(1)?, max_k));
    compute(device, inputs, attend, max_k, lse, is_packed)
}

/// Computes `softmax(softmax_scale * q kᵀ) v`. Shapes are `(batch, sequence, heads, head_dim)`. The number of
/// query heads is a multiple of the number of key heads. `causal` aligns bottom-right. `v` may have another
/// head dim than `q` and `k` (MLA: 192 and 128); the output then has the head dim of `v`.
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
    q.apply_op3(k, v, op)
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
    q.apply_op3(k, v, op)
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
    q.apply_op3(k, v, op)
}

/// Computes attention, and the natural LSE of each row, f32 `(batch, heads, sequence)`. This function has no
/// gradient.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
    both(run([q, k, v], |inputs| forward(inputs, attend, None, true))?)
}
