//! Functions with biases and sinks, named like candle-flash-attn's. [`Attend`] has every option.
use crate::attend::Attend;
use crate::forward::forward;
use crate::run::run;
use crate::starts::Starts;
use candle::{Result, Tensor};

/// Computes [`flash_attn`](crate::flash_attn) with all options of [`Attend`]. This function has no gradient.
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
pub fn flash_attn_with(q: &Tensor, k: &Tensor, v: &Tensor, attend: &Attend) -> Result<Tensor> {
    Ok(run([q, k, v], Some(attend), |inputs| forward(inputs, attend, None, false))?.0)
}

/// Computes [`flash_attn_varlen`](crate::flash_attn_varlen) with all options of [`Attend`]. This function has
/// no gradient.
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
#[expect(clippy::too_many_arguments, reason = "they are flash_attn_varlen's")]
pub fn flash_attn_varlen_with(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    attend: &Attend,
) -> Result<Tensor> {
    let starts = Starts { q: seqlens_q, k: seqlens_k, max_q: max_seqlen_q, max_k: max_seqlen_k };
    Ok(run([q, k, v], Some(attend), |inputs| forward(inputs, attend, Some(starts), false))?.0)
}

/// Computes [`flash_attn`](crate::flash_attn) with a bias that the kernel adds to the scaled scores. The bias
/// is `(batch or 1, heads or 1, queries or 1, keys)`, f16, bf16 or f32. T5 has such a bias.
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
pub fn flash_attn_bias(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_with(q, k, v, &Attend::causal_or_full(softmax_scale, causal).bias(bias))
}

/// Computes [`flash_attn_varlen`](crate::flash_attn_varlen) with a bias `(sequences or 1, heads or 1,
/// max_seqlen_q or 1, max_seqlen_k)`. Query 0 and key 0 are the first of their sequence.
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
#[expect(clippy::too_many_arguments, reason = "they are flash_attn_varlen's, and a bias")]
pub fn flash_attn_varlen_bias(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let attend = Attend::causal_or_full(softmax_scale, causal).bias(bias);
    flash_attn_varlen_with(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k, &attend)
}

/// Computes [`flash_attn_windowed`](crate::flash_attn_windowed) with attention sinks, f32 `[heads]`
/// (gpt-oss).
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
pub fn flash_attn_sinks(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sinks: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
    flash_attn_with(q, k, v, &attend.sinks(sinks))
}

/// Computes [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed) with attention sinks, f32
/// `[heads]`.
///
/// # Errors
/// Returns the errors of [`flash_attn`](crate::flash_attn).
#[expect(clippy::too_many_arguments, reason = "they are flash_attn_varlen_windowed's, and sinks")]
pub fn flash_attn_varlen_sinks(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sinks: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right).sinks(sinks);
    flash_attn_varlen_with(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k, &attend)
}
