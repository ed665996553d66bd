//! candle-flash-attn's functions, with their names and arguments, and functions with all options of
//! [`Attend`].
use crate::attend::Attend;
use crate::operation::Attention;
use crate::starts::Starts;
#[cfg(feature = "cuda")]
use crate::{
    errors::invalid,
    gpu::{
        forward::forward,
        paged::PagedKv,
        ranges::{unsigned, with_ranges},
        run::{Results, both, run},
    },
};
use candle::{Result, Tensor};
#[cfg(feature = "cuda")]
use ferroflash::request::RowOutputs;

/// The tensors of a call.
struct Call<'a> {
    qkv: [&'a Tensor; 3],
    starts: Option<Starts>,
}

impl Call<'_> {
    fn with_gradient(self, attend: Attend) -> Result<Tensor> {
        Attention::new(attend, self.starts).apply(self.qkv)
    }

    #[cfg(feature = "cuda")]
    fn with_rows(self, attend: &Attend, wanted: RowOutputs<bool>) -> Result<Results> {
        run(self.qkv, attend, |inputs| forward(inputs, attend, self.starts.as_ref(), wanted))
    }

    #[cfg(feature = "cuda")]
    fn without_rows(self, attend: &Attend) -> Result<Tensor> {
        Ok(self.with_rows(attend, RowOutputs::NONE)?.0)
    }
}

/// Declares pairs of functions, for dense and for varlen tensors. Their arguments differ only in the
/// sequences' offsets. An argument before the `;` precedes the offsets, the others follow them.
macro_rules! functions {
    ($(
        $(#[$of_dense:meta])* $dense:ident;
        $(#[$of_varlen:meta])* $varlen:ident(
            $($extra:ident: $of_extra:ty)?; $($argument:ident: $type:ty),*
        ) -> $result:ty = $call:ident => $body:expr;
    )*) => {$(
        $(#[$of_dense])*
        ///
        /// # Errors
        /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
        #[allow(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
        pub fn $dense(
            q: &Tensor,
            k: &Tensor,
            v: &Tensor,
            $($extra: $of_extra,)?
            $($argument: $type),*
        ) -> Result<$result> {
            let $call = Call { qkv: [q, k, v], starts: None };
            $body
        }

        $(#[$of_varlen])*
        ///
        /// # Errors
        /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
        #[allow(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
        pub fn $varlen(
            q: &Tensor,
            k: &Tensor,
            v: &Tensor,
            $($extra: $of_extra,)?
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            $($argument: $type),*
        ) -> Result<$result> {
            let (q_starts, k_starts) = (seqlens_q.clone(), seqlens_k.clone());
            let starts = Starts { q: q_starts, k: k_starts, max_q: max_seqlen_q, max_k: max_seqlen_k };
            let $call = Call { qkv: [q, k, v], starts: Some(starts) };
            $body
        }
    )*};
}
functions! {
    /// Computes `softmax(softmax_scale * q kᵀ) v`. Shapes are `(batch, sequence, heads, head_dim)`. The
    /// number of query heads is a multiple of the number of key heads. `causal` aligns bottom-right. `v` may
    /// have another head dim than `q` and `k` (MLA: 192 and 128); the output then has the head dim of `v`.
    ///
    /// If the program tracks an input, the forward keeps the LSE for the gradient. On a GPU, the gradient
    /// needs the feature `training`. On the CPU, tensors may also be f32.
    flash_attn;
    /// Computes varlen attention. `q`, `k` and `v` are `(rows of all sequences, heads, head_dim)`. Sequence
    /// `b` has the rows `seqlens_q[b]..seqlens_q[b + 1]` of `q` and the rows `seqlens_k[b]..seqlens_k[b + 1]`
    /// of `k` and `v`. The offsets are u32 or i32. O is 0 in rows that belong to no sequence. `causal` aligns
    /// bottom-right. `v` may have another head dim than `q` and `k`; the output then has the head dim of `v`.
    ///
    /// The gradient is that of [`flash_attn`]; it is 0 in rows that belong to no sequence.
    flash_attn_varlen(; softmax_scale: f32, causal: bool) -> Tensor = call =>
        call.with_gradient(Attend::causal_or_full(softmax_scale, causal));

    /// Computes [`flash_attn`] with a sliding window. A query sees the keys from `window_size_left` before
    /// its own position to `window_size_right` after it. `None` is unbounded.
    flash_attn_windowed;
    /// Computes [`flash_attn_varlen`] with a sliding window, as in [`flash_attn_windowed`].
    flash_attn_varlen_windowed(
        ; softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) -> Tensor = call =>
        call.with_gradient(Attend::full(softmax_scale).window(window_size_left, window_size_right));

    /// Computes [`flash_attn`] with ALiBi: one f32 slope per query head.
    flash_attn_alibi;
    /// Computes [`flash_attn_varlen`] with ALiBi: one f32 slope per query head.
    flash_attn_varlen_alibi(alibi_slopes: &Tensor; softmax_scale: f32, causal: bool) -> Tensor = call =>
        call.with_gradient(Attend::causal_or_full(softmax_scale, causal).alibi_slopes(alibi_slopes));

    /// Computes [`flash_attn_windowed`] with ALiBi.
    flash_attn_alibi_windowed;
    /// Computes [`flash_attn_varlen_windowed`] with ALiBi.
    flash_attn_varlen_alibi_windowed(
        alibi_slopes: &Tensor;
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) -> Tensor = call => {
        let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        call.with_gradient(attend.alibi_slopes(alibi_slopes))
    };

    /// Computes [`flash_attn_windowed`] with optional ALiBi and softcap: scores become `softcap * tanh(score
    /// / softcap)`; 0 is off.
    flash_attn_alibi_windowed_softcap;
    /// Computes [`flash_attn_varlen_windowed`] with optional ALiBi and softcap: scores become `softcap *
    /// tanh(score / softcap)`; 0 is off.
    flash_attn_varlen_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>;
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>, softcap: f32
    ) -> Tensor = call => {
        let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right).softcap(softcap);
        call.with_gradient(alibi_slopes.into_iter().fold(attend, Attend::alibi_slopes))
    };
}
#[cfg(feature = "cuda")]
functions! {
    /// Computes [`flash_attn`] with a bias that the kernel adds to the scaled scores. The bias is `(batch or
    /// 1, heads or 1, queries or 1, keys)`, f16, bf16 or f32. T5 has such a bias. This function has no
    /// gradient.
    flash_attn_bias;
    /// Computes [`flash_attn_varlen`] with a bias `(sequences or 1, heads or 1, max_seqlen_q or 1,
    /// max_seqlen_k)`. Query 0 and key 0 are the first of their sequence. This function has no gradient.
    flash_attn_varlen_bias(bias: &Tensor; softmax_scale: f32, causal: bool) -> Tensor = call =>
        call.without_rows(&Attend::causal_or_full(softmax_scale, causal).bias(bias));

    /// Computes [`flash_attn_windowed`] with attention sinks, f32 `[heads]` (gpt-oss). This function has no
    /// gradient.
    flash_attn_sinks;
    /// Computes [`flash_attn_varlen_windowed`] with attention sinks, f32 `[heads]`. This function has no
    /// gradient.
    flash_attn_varlen_sinks(
        sinks: &Tensor;
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) -> Tensor = call => {
        let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        call.without_rows(&attend.sinks(sinks))
    };

    /// Computes [`flash_attn`] with all options of [`Attend`]. This function has no gradient.
    flash_attn_with;
    /// Computes [`flash_attn_varlen`] with all options of [`Attend`]. This function has no gradient.
    flash_attn_varlen_with(; attend: &Attend) -> Tensor = call => call.without_rows(attend);

    /// Computes attention, and the natural LSE of each row, f32 `(batch, heads, sequence)`. This function has
    /// no gradient.
    flash_attn_with_lse;
    /// Computes attention of varlen sequences, and the natural log-sum-exp (LSE) of each row, f32 `(heads,
    /// rows)`. The function has no gradient.
    ///
    /// | row | O | LSE |
    /// |---|---|---|
    /// | a sequence's | its attention | its LSE |
    /// | a sequence's, without a visible key | 0 | `-inf`; with sinks, the sink |
    /// | padding, before the first sequence or after the last | 0 | `-inf`; with sinks, `-inf` or the sink |
    flash_attn_varlen_with_lse(; attend: &Attend) -> (Tensor, Tensor) = call =>
        both(call.with_rows(attend, RowOutputs::LSE)?);

    /// Computes attention, and the wanted outputs of rows, f32 `(batch, heads, sequence)` each. This function
    /// has no gradient.
    flash_attn_with_rows;
    /// Computes attention of varlen sequences, and the wanted outputs of rows, f32 `(heads, rows)` each. This
    /// function has no gradient.
    flash_attn_varlen_with_rows(; attend: &Attend, wanted: RowOutputs<bool>)
        -> (Tensor, RowOutputs<Option<Tensor>>) = call => call.with_rows(attend, wanted);
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
    let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
    let attend = attend.softcap(softcap.unwrap_or(0.0));
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
        return kv.attend(&q.unsqueeze(1)?, &attend)?.reshape((rows, heads, head_dim));
    }
    kv.attend_varlen(q, seqlens_q, max_seqlen_q, &attend)
}
