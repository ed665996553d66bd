//! candle-flash-attn's functions, with their names. A stream precedes their arguments.
use super::attention::Inputs;
use super::front::FlashAttention;
use super::memory::{Element, Slice};
use super::scratch::ScratchMemory;
use super::views::{Cache, Integers, Tensor};
use crate::Error;
use crate::request::{AlibiSlopes, Mask, VarlenKeys, VarlenQueries};
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// ALiBi slopes, one per head.
type Slopes<'a> = AlibiSlopes<Slice<'a>>;

fn causal_or_full<M>(causal: bool) -> Mask<M> {
    if causal { Mask::Causal } else { Mask::Full }
}

/// Declares pairs of functions, for dense tensors and for varlen sequences, from the setters of their inputs.
/// The arguments of a pair differ only in the sequences' offsets. An argument before the `;` precedes the
/// offsets, the others follow them.
macro_rules! functions {
    ($(
        $(#[$of_dense:meta])* $dense:ident;
        $(#[$of_varlen:meta])* $varlen:ident(
            $($extra:ident: $of_extra:ty)?; $($argument:ident: $type:ty),*
        ) = $inputs:ident => $set:expr;
    )*) => {
        impl FlashAttention {$(
            $(#[$of_dense])*
            ///
            /// # Errors
            /// Returns the errors of [`FlashAttention::attend`].
            #[allow(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
            pub fn $dense<'a, T: Element>(
                &self,
                stream: &Arc<CudaStream>,
                q: Tensor<'a>,
                k: Tensor<'a>,
                v: Tensor<'a>,
                $($extra: $of_extra,)?
                $($argument: $type),*
            ) -> Result<CudaSlice<T>, Error> {
                let $inputs = Inputs::of(q, k, v);
                self.attend_alone(stream, &$set)
            }

            $(#[$of_varlen])*
            ///
            /// # Errors
            /// Returns the errors of [`FlashAttention::attend`].
            #[allow(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
            pub fn $varlen<'a, T: Element>(
                &self,
                stream: &Arc<CudaStream>,
                q: Tensor<'a>,
                k: Tensor<'a>,
                v: Tensor<'a>,
                $($extra: $of_extra,)?
                seqlens_q: Integers<'a>,
                seqlens_k: Integers<'a>,
                max_seqlen_q: usize,
                max_seqlen_k: usize,
                $($argument: $type),*
            ) -> Result<CudaSlice<T>, Error> {
                let queries = VarlenQueries::of_all(seqlens_q, max_seqlen_q);
                let keys = VarlenKeys::new(seqlens_k, max_seqlen_k);
                let $inputs = Inputs::of_varlen(q, k, v, queries, keys);
                self.attend_alone(stream, &$set)
            }
        )*}
    };
}
functions! {
    /// Computes `o = softmax(softmax_scale * q kᵀ) v` on `stream` and returns `o`, contiguous and of the
    /// shape of `q`. `causal` is aligned bottom-right.
    flash_attn;
    /// Computes attention of varlen sequences. `q`, `k` and `v` are `[1, rows, heads, head_dim]`. Sequence
    /// `b` begins at row `seqlens_q[b]` of `q` and at row `seqlens_k[b]` of `k` and `v`, and ends where
    /// sequence `b + 1` begins. `o` is contiguous and of the shape of `q`; padding rows are 0. `causal` is
    /// aligned bottom-right.
    flash_attn_varlen(; softmax_scale: f32, causal: bool) =
        inputs => inputs.scale(softmax_scale).mask(causal_or_full(causal));

    /// Computes [`FlashAttention::flash_attn`] with a sliding window: a query sees the keys from
    /// `left` before its position to `right` after it, both inclusive. `None` is unbounded.
    flash_attn_windowed;
    /// Computes [`FlashAttention::flash_attn_varlen`] with a sliding window, as in
    /// [`FlashAttention::flash_attn_windowed`].
    flash_attn_varlen_windowed(; softmax_scale: f32, left: Option<u32>, right: Option<u32>) =
        inputs => inputs.scale(softmax_scale).mask(Mask::Window { left, right });

    /// Computes [`FlashAttention::flash_attn`] with ALiBi: one slope per query head.
    flash_attn_alibi;
    /// Computes [`FlashAttention::flash_attn_varlen`] with ALiBi: one slope per query head.
    flash_attn_varlen_alibi(alibi_slopes: Slopes<'a>; softmax_scale: f32, causal: bool) =
        inputs => inputs.scale(softmax_scale).mask(causal_or_full(causal)).alibi(alibi_slopes);

    /// Computes attention with ALiBi and a sliding window, as in [`FlashAttention::flash_attn_windowed`].
    flash_attn_alibi_windowed;
    /// Computes [`FlashAttention::flash_attn_varlen_windowed`] with ALiBi.
    flash_attn_varlen_alibi_windowed(
        alibi_slopes: Slopes<'a>; softmax_scale: f32, left: Option<u32>, right: Option<u32>
    ) = inputs => inputs.scale(softmax_scale).mask(Mask::Window { left, right }).alibi(alibi_slopes);

    /// Computes attention with a sliding window, optional ALiBi slopes, and softcap. A softcap of 0 is off.
    flash_attn_alibi_windowed_softcap;
    /// Computes [`FlashAttention::flash_attn_varlen_windowed`] with optional ALiBi slopes and softcap. A
    /// softcap of 0 is off.
    flash_attn_varlen_alibi_windowed_softcap(
        alibi_slopes: Option<Slopes<'a>>;
        softmax_scale: f32, left: Option<u32>, right: Option<u32>, softcap: f32
    ) = inputs => alibi_slopes.into_iter().fold(
        inputs.scale(softmax_scale).mask(Mask::Window { left, right }).softcap(softcap),
        Inputs::alibi
    );
}

impl FlashAttention {
    /// FlashAttention's `flash_attn_with_kvcache`: computes attention of queries `[batch, queries, heads,
    /// head_dim]` on a KV cache. `cache` replaces the arguments `k_cache`, `v_cache`, `cache_seqlens`,
    /// `cache_batch_idx` and `block_table`. Call [`FlashAttention::append`] first to write new keys and
    /// values. `causal` aligns bottom-right.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn flash_attn_with_kvcache<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_>,
        cache: Cache<'_>,
        softmax_scale: f32,
        causal: bool,
        scratch: &mut ScratchMemory,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::of_cache(q, cache).scale(softmax_scale).mask(causal_or_full(causal));
        self.attend(stream, &inputs, scratch)
    }
}
