//! Varlen attention with candle-flash-attn's functions.
use crate::attend::Attend;
use crate::operation::Attention;
use crate::starts::Starts;
#[cfg(feature = "cuda")]
use crate::{
    errors::invalid,
    forward::forward,
    paged::{PagedKv, Queries},
    ranges::{unsigned, with_ranges},
    run::{both, run},
};
use candle::{Result, Tensor};

/// Computes varlen attention. `q`, `k` and `v` are `(rows of all sequences, heads, head_dim)`. Sequence `b`
/// has the rows `seqlens_q[b]..seqlens_q[b + 1]` of `q` and the rows `seqlens_k[b]..seqlens_k[b + 1]` of `k`
/// and `v`. The offsets are u32 or i32. O is 0 in rows that belong to no sequence. `causal` aligns
/// bottom-right. `v` may have another head dim than `q` and `k`; the output then has the head dim of `v`.
///
/// The gradient of varlen sequences exists on the CPU. On a GPU, `loss.backward()` returns an error: call
/// [`flash_attn`](crate::flash_attn) for each sequence, on `q.narrow(0, start, rows)?.unsqueeze(0)?`.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let (attend, max) = (Attend::causal_or_full(softmax_scale, causal), [max_seqlen_q, max_seqlen_k]);
    varlen([q, k, v], attend, [seqlens_q, seqlens_k], max)
}

/// Computes [`flash_attn_varlen`] with a sliding window. A query sees the keys from `window_size_left` before
/// its own position to `window_size_right` after it. `None` is unbounded.
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
    varlen([q, k, v], attend, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// Computes [`flash_attn_varlen_windowed`] on a paged KV cache. `k` and `v` are `(pages, page_block_size,
/// heads, head_dim)`. Key `j` of sequence `b` is in page `block_table[b][j / page_block_size]`. Sequence `b`
/// has `seqlens_k[b + 1] - seqlens_k[b]` keys. Pages may have any size. Decode kernels run if `q` has one row
/// per sequence and `max_seqlen_q` is 1: row `b` then belongs to sequence `b`. An e4m3 cache has scales of 1:
/// [`PagedKv::attend_varlen`] takes others.
///
/// `mm_prefix_ranges`, i32 `(sequences, ranges, 2)`, are ranges of positions. A row inside a range of its
/// sequence also sees all keys of this range, regardless of the mask. Ranges of a sequence must be disjoint.
/// An empty range has no effect.
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[cfg(feature = "cuda")]
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let page = k.dims4()?.1;
    if page != page_block_size {
        return Err(invalid("page_block_size", page_block_size, format_args!("that of k, {page}")));
    }
    let mut attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
    attend.softcap = softcap;
    let sequences = block_table.dims2()?.0;
    let seqlens_k = unsigned(seqlens_k)?;
    // A single sequence begins at 0, so its end is also its length.
    let lengths = match sequences {
        1 => seqlens_k.narrow(0, 1, 1)?,
        _ => (seqlens_k.narrow(0, 1, sequences)? - seqlens_k.narrow(0, 0, sequences)?)?,
    };
    let (rows, heads, head_dim) = q.dims3()?;
    let decoded = max_seqlen_q == 1 && rows == sequences;
    let mut kv = PagedKv::new(k, v, block_table, &lengths);
    kv.max_seqlen_k = Some(max_seqlen_k);
    if let Some(ranges) = mm_prefix_ranges {
        return with_ranges(&kv, q, seqlens_q, ranges, max_seqlen_q, &attend);
    }
    if decoded {
        return kv.run(&q.unsqueeze(1)?, Queries::Even, &attend, false)?.0.reshape((rows, heads, head_dim));
    }
    kv.attend_varlen(q, seqlens_q, max_seqlen_q, &attend)
}

/// Computes [`flash_attn_varlen`] with ALiBi: one f32 slope per query head.
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let attend = Attend::causal_or_full(softmax_scale, causal).alibi_slopes(alibi_slopes);
    varlen([q, k, v], attend, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// Computes [`flash_attn_varlen_windowed`] with ALiBi.
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
    let attend = attend.alibi_slopes(alibi_slopes);
    varlen([q, k, v], attend, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// Computes [`flash_attn_varlen_windowed`] with optional ALiBi and softcap: scores become `softcap *
/// tanh(score / softcap)`; 0 is off.
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right).softcap(softcap);
    let attend = alibi_slopes.into_iter().fold(attend, Attend::alibi_slopes);
    varlen([q, k, v], attend, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// Computes attention of varlen sequences, and the natural log-sum-exp (LSE) of each row, f32 `(heads,
/// rows)`. The function has no gradient.
///
/// | row | O | LSE |
/// |---|---|---|
/// | a sequence's | its attention | its LSE |
/// | a sequence's, without a visible key | 0 | `-inf`; with sinks, the sink |
/// | padding, before the first sequence or after the last | 0 | `-inf`; with sinks, `-inf` or the sink |
///
/// # Errors
/// Returns the errors of [`flash_attn_varlen`].
#[cfg(feature = "cuda")]
#[expect(clippy::too_many_arguments, reason = "they are flash_attn_varlen's")]
pub fn flash_attn_varlen_with_lse(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    attend: &Attend,
) -> Result<(Tensor, Tensor)> {
    let starts = Starts { q: seqlens_q, k: seqlens_k, max_q: max_seqlen_q, max_k: max_seqlen_k };
    both(run([q, k, v], Some(attend), |inputs| forward(inputs, attend, Some(starts), true))?)
}

fn varlen(
    [q, k, v]: [&Tensor; 3],
    attend: Attend,
    [seqlens_q, seqlens_k]: [&Tensor; 2],
    [max_q, max_k]: [usize; 2],
) -> Result<Tensor> {
    let starts = Starts { q: seqlens_q.clone(), k: seqlens_k.clone(), max_q, max_k };
    Attention::new(attend, Some(starts)).apply(q, k, v)
}
