//! candle-flash-attn's functions, with their names. A stream precedes their arguments.
use super::attention::Inputs;
use super::cache::Cache;
use super::front::FlashAttention;
use super::memory::{Element, Integers, Memory, Number, PerHead};
use super::scratch::ScratchMemory;
use super::tensor::Tensor;
use crate::Error;
use crate::request::Mask;
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

fn causal_or_full(causal: bool) -> Mask {
    if causal { Mask::Causal } else { Mask::Full }
}

fn windowed(left: Option<u32>, right: Option<u32>) -> Mask {
    Mask::Window { left, right }
}

impl FlashAttention {
    /// Computes `o = softmax(softmax_scale * q kᵀ) v` on `stream` and returns `o`, contiguous and of the
    /// shape of `q`. `causal` is aligned bottom-right.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn flash_attn<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::dense(q, k, v).scale(softmax_scale).mask(causal_or_full(causal));
        self.attend_alone(stream, &inputs)
    }

    /// Computes [`FlashAttention::flash_attn`] with a sliding window: a query sees the keys from
    /// `window_size_left` before its position to `window_size_right` after it, both inclusive. `None` is
    /// unbounded.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_windowed<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs =
            Inputs::dense(q, k, v).scale(softmax_scale).mask(windowed(window_size_left, window_size_right));
        self.attend_alone(stream, &inputs)
    }

    /// Computes [`FlashAttention::flash_attn`] with ALiBi: one slope per query head.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_alibi<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: &'a impl Memory<f32>,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::dense(q, k, v)
            .scale(softmax_scale)
            .mask(causal_or_full(causal))
            .alibi(PerHead::new(alibi_slopes));
        self.attend_alone(stream, &inputs)
    }

    /// Computes attention with ALiBi and a sliding window, as in [`FlashAttention::flash_attn_windowed`].
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_alibi_windowed<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: &'a impl Memory<f32>,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::dense(q, k, v)
            .scale(softmax_scale)
            .mask(windowed(window_size_left, window_size_right))
            .alibi(PerHead::new(alibi_slopes));
        self.attend_alone(stream, &inputs)
    }

    /// Computes attention with a sliding window, optional ALiBi slopes, and softcap. A softcap of 0 is off.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_alibi_windowed_softcap<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: Option<PerHead<'a>>,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
        softcap: f32,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::dense(q, k, v)
            .scale(softmax_scale)
            .mask(windowed(window_size_left, window_size_right))
            .softcap(softcap);
        self.attend_alone(stream, &alibi_slopes.into_iter().fold(inputs, Inputs::alibi))
    }

    /// Computes attention of varlen sequences. `q`, `k` and `v` are `[1, rows, heads, head_dim]`. Sequence
    /// `b` begins at row `seqlens_q[b]` of `q` and at row `seqlens_k[b]` of `k` and `v`, and ends where
    /// sequence `b + 1` begins. `o` is contiguous and of the shape of `q`; padding rows are 0. `causal` is
    /// aligned bottom-right.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_varlen<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        seqlens_q: impl Into<Integers<'a>>,
        seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::varlen(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k)
            .scale(softmax_scale)
            .mask(causal_or_full(causal));
        self.attend_alone(stream, &inputs)
    }

    /// Computes attention with ALiBi and a sliding window, as in [`FlashAttention::flash_attn_windowed`].
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_varlen_windowed<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        seqlens_q: impl Into<Integers<'a>>,
        seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::varlen(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k)
            .scale(softmax_scale)
            .mask(windowed(window_size_left, window_size_right));
        self.attend_alone(stream, &inputs)
    }

    /// Computes [`FlashAttention::flash_attn_varlen`] with ALiBi: one slope per query head.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_varlen_alibi<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: &'a impl Memory<f32>,
        seqlens_q: impl Into<Integers<'a>>,
        seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::varlen(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k)
            .scale(softmax_scale)
            .mask(causal_or_full(causal))
            .alibi(PerHead::new(alibi_slopes));
        self.attend_alone(stream, &inputs)
    }

    /// Computes attention with ALiBi and a sliding window, as in [`FlashAttention::flash_attn_windowed`].
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_varlen_alibi_windowed<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: &'a impl Memory<f32>,
        seqlens_q: impl Into<Integers<'a>>,
        seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::varlen(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k)
            .scale(softmax_scale)
            .mask(windowed(window_size_left, window_size_right))
            .alibi(PerHead::new(alibi_slopes));
        self.attend_alone(stream, &inputs)
    }

    /// Computes attention with a sliding window, optional ALiBi slopes, and softcap. A softcap of 0 is off.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_varlen_alibi_windowed_softcap<'a, T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        alibi_slopes: Option<PerHead<'a>>,
        seqlens_q: impl Into<Integers<'a>>,
        seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
        softcap: f32,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::varlen(q, k, v, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k)
            .scale(softmax_scale)
            .mask(windowed(window_size_left, window_size_right))
            .softcap(softcap);
        self.attend_alone(stream, &alibi_slopes.into_iter().fold(inputs, Inputs::alibi))
    }

    /// FlashAttention's `flash_attn_with_kvcache`: computes attention of queries `[batch, queries, heads,
    /// head_dim]` on a KV cache. `cache` replaces the arguments `k_cache`, `v_cache`, `cache_seqlens`,
    /// `cache_batch_idx` and `block_table`. Call [`FlashAttention::append`] first to write new keys and
    /// values. `causal` aligns bottom-right.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn flash_attn_with_kvcache<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_, T>,
        cache: Cache<'_, C>,
        softmax_scale: f32,
        causal: bool,
        scratch: &mut ScratchMemory,
    ) -> Result<CudaSlice<T>, Error> {
        let inputs = Inputs::cached(q, cache).scale(softmax_scale).mask(causal_or_full(causal));
        self.attend(stream, &inputs, scratch)
    }
}
