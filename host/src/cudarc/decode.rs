//! Attention on caches in cudarc's slices.
use super::forward::{log_sum_exps, lse, output, sequences, slopes};
use super::memory::{Integers, Memory, PerHead, Taken};
use super::{Cache, Element, FlashAttention, MemoryMut, Number, Room, Tensor, TensorMut};
use crate::{Error, Mask, PackedQueries, Sinks, Splits};
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// Queries of type `T` on a cache of `C`: [`crate::Decode`] on cudarc's slices. Decoding, and just as well
/// chunks of prompts.
#[derive(Clone, Copy)]
#[must_use]
pub struct Decode<'a, T, C = T> {
    q: Tensor<'a, T>,
    cache: Cache<'a, C>,
    mask: Mask,
    scale: Option<f32>,
    softcap: Option<f32>,
    alibi: Option<PerHead<'a>>,
    packed: Option<(Integers<'a>, usize)>,
    sinks: Option<&'a dyn Memory<f32>>,
    splits: Splits,
}

impl<'a, T: Element, C: Number> Decode<'a, T, C> {
    /// `[batch, queries, heads, head_dim]` on the keys of as many sequences; every query sees every key, with
    /// a scale of `1 / sqrt(head_dim)`.
    pub fn new(q: Tensor<'a, T>, cache: Cache<'a, C>) -> Self {
        let (scale, softcap, alibi, packed, sinks) = (None, None, None, None, None);
        let (mask, splits) = (Mask::Full, Splits::Auto);
        Decode { q, cache, mask, scale, softcap, alibi, packed, sinks, splits }
    }

    /// As [`crate::Decode::mask`].
    pub fn mask(self, mask: Mask) -> Self {
        Decode { mask, ..self }
    }

    /// As [`crate::Decode::scale`].
    pub fn scale(self, scale: f32) -> Self {
        Decode { scale: Some(scale), ..self }
    }

    /// As [`crate::Decode::softcap`]: 0 is none.
    pub fn softcap(self, softcap: f32) -> Self {
        Decode { softcap: (softcap != 0.0).then_some(softcap), ..self }
    }

    /// As [`crate::Decode::alibi`]: a slope for each query head, or for each sequence and query head.
    pub fn alibi(self, slopes: PerHead<'a>) -> Self {
        Decode { alibi: Some(slopes), ..self }
    }

    /// Sequences of any numbers of queries, at most `max_seqlen_q`, as [`crate::Decode::packed`]: one fewer
    /// than there are numbers in `cu_seqlens_q`; `q` is `[1, rows of all sequences, heads, head_dim]`.
    pub fn packed(self, cu_seqlens_q: impl Into<Integers<'a>>, max_seqlen_q: usize) -> Self {
        Decode { packed: Some((cu_seqlens_q.into(), max_seqlen_q)), ..self }
    }

    /// As [`crate::Decode::sinks`]: a logit for each query head.
    pub fn sinks(self, sinks: &'a impl Memory<f32>) -> Self {
        Decode { sinks: Some(sinks), ..self }
    }

    /// As [`crate::Decode::splits`].
    pub fn splits(self, splits: Splits) -> Self {
        Decode { splits, ..self }
    }

    /// Its inputs in the order of a stream, with an output where no memory is.
    fn on(&self, taken: &mut Taken<'a>) -> Result<crate::Decode<'static>, Error> {
        let (q, cache) = (self.q.on(taken, "q")?, self.cache.on(taken)?);
        let mut decode = crate::Decode::new(q, cache, self.q.output()).mask(self.mask).splits(self.splits);
        (decode.scale, decode.softcap) = (self.scale, self.softcap);
        decode.alibi = self.alibi.map(|alibi| slopes(taken, alibi)).transpose()?;
        if let Some((starts, max_seqlen_q)) = self.packed {
            let starts = taken.integers("packed.cu_seqlens_q", starts)?;
            decode.packed = Some(PackedQueries::new(sequences(starts.elements), starts, max_seqlen_q));
        }
        if let Some(sinks) = self.sinks {
            let (address, elements) = taken.read("sinks", sinks)?;
            decode.sinks = Some(Sinks { address, elements });
        }
        Ok(decode)
    }
}

impl FlashAttention {
    /// Makes the room as large as launches of the request, or of the same with other tensors, want it: what
    /// it lacks is allocated, in the order of `stream`.
    ///
    /// # Errors
    /// Those of [`FlashAttention::decode_into`]. [`Error::Unsupported`] where the room is to grow while
    /// `stream` captures a graph, which would keep the memory for itself.
    pub fn reserve<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Decode<'_, T, C>,
        room: &mut Room,
    ) -> Result<(), Error> {
        let mut taken = Taken::on(self, stream)?;
        let plan = self.decodes.of(self, &request.on(&mut taken)?)?;
        let capturing = taken.capturing;
        drop(taken);
        room.grow(self, stream, capturing, [plan.workspace_bytes(), plan.counters_bytes()])
    }

    /// FlashAttention's function: `q` `[batch, queries, heads, head_dim]` on a cache, which says what there
    /// is `k_cache`, `v_cache`, `cache_seqlens`, `cache_batch_idx` and `block_table`. New keys and values
    /// are first put there by [`FlashAttention::append`]. `causal` is aligned bottom-right.
    ///
    /// # Errors
    /// Those of [`FlashAttention::decode`].
    pub fn flash_attn_with_kvcache<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_, T>,
        cache: Cache<'_, C>,
        softmax_scale: f32,
        causal: bool,
        room: &mut Room,
    ) -> Result<CudaSlice<T>, Error> {
        let mask = if causal { Mask::Causal } else { Mask::Full };
        self.decode(stream, &Decode::new(q, cache).scale(softmax_scale).mask(mask), room)
    }

    /// Attention on a cache, on `stream`: O, contiguous and of `q`'s shape. The room becomes as large as is
    /// wanted. Rows of O that are no packed sequence's are 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] name what is wrong, [`Error::Driver`] what the driver
    /// refuses. What is refused keeps no memory.
    pub fn decode<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Decode<'_, T, C>,
        room: &mut Room,
    ) -> Result<CudaSlice<T>, Error> {
        self.reserve(stream, request, room)?;
        let mut o = output(stream, request.q.shape.iter().product(), request.packed.is_some())?;
        self.decode_into(stream, request, room, TensorMut::new(&mut o, request.q.shape), None)?;
        Ok(o)
    }

    /// The same, and the log-sum-exp of each row: `[batch, heads, queries]`, contiguous. Rows that are no
    /// packed sequence's have -inf, so that a merge gives them no weight.
    ///
    /// # Errors
    /// Those of [`FlashAttention::decode`].
    pub fn decode_with_lse<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Decode<'_, T, C>,
        room: &mut Room,
    ) -> Result<(CudaSlice<T>, CudaSlice<f32>), Error> {
        self.reserve(stream, request, room)?;
        let ([batch, queries, heads, _], packed) = (request.q.shape, request.packed.is_some());
        let mut o = output(stream, request.q.shape.iter().product(), packed)?;
        let mut lse = log_sum_exps(stream, batch * heads * queries, packed)?;
        self.decode_into(stream, request, room, TensorMut::new(&mut o, request.q.shape), Some(&mut lse))?;
        Ok((o, lse))
    }

    /// The same into memory of the caller's: allocates nothing. The room is as [`FlashAttention::reserve`]
    /// has made it. Rows that are no packed sequence's stay as they are.
    ///
    /// # Errors
    /// Those of [`FlashAttention::decode`], and [`Error::Invalid`] where the room is too small.
    pub fn decode_into<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Decode<'_, T, C>,
        room: &mut Room,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        let mut taken = Taken::on(self, stream)?;
        let mut decode = request.on(&mut taken)?;
        decode.o = o.on(&mut taken, "o")?;
        decode.lse = self::lse(&mut taken, lse, request.q.shape)?;
        (decode.workspace, decode.counters) = room.on(&mut taken)?;
        let plan = self.decodes.of(self, &decode)?;
        // SAFETY: all that the request names was taken; the counters are zeros, as launches leave them.
        unsafe { self.launch(&plan, &decode, stream) }
    }
}
