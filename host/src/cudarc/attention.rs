//! Attention on cudarc's slices: the request, and the functions that launch it.
use super::cache::Cache;
use super::extras::{Bias, MaskBits, Shown};
use super::front::{FlashAttention, refused};
use super::memory::{Element, Integers, Memory, MemoryMut, Number, PerHead, StreamGuards};
use super::scratch::ScratchMemory;
use super::tensor::{Tensor, TensorMut};
use super::variant::{OwnVariant, Table};
use crate::request::{
    AlibiSlopes, Alignment, AttentionRequest, KeysValues, LseView, Mask, Queries, Scores, Scratch,
    SharedPrefixes, Sinks, Splits, VarlenKeys, VarlenQueries,
};
use crate::{Error, Plan};
use ::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, sys};
use std::sync::Arc;

/// The inputs of one attention in cudarc's slices: an [`AttentionRequest`] without its output. Queries have
/// type `T`. Keys and values have type `T`, or type `C` in a [`Cache`].
///
/// | keys and values | constructor |
/// |---|---|
/// | tensors, sequences of equal lengths | [`Inputs::dense`] |
/// | tensors, varlen sequences | [`Inputs::varlen`] |
/// | a KV cache, to decode or to prefill | [`Inputs::cached`] |
#[derive(Clone, Copy)]
#[must_use]
pub struct Inputs<'a, T, C = T> {
    q: Tensor<'a, T>,
    /// Offsets of varlen queries, and the maximum number of queries per sequence.
    queries: Option<(Integers<'a>, usize)>,
    kv: Source<'a, T, C>,
    mask: Shown<'a>,
    alignment: Alignment,
    scale: Option<f32>,
    softcap: Option<f32>,
    alibi: Option<PerHead<'a>>,
    sinks: Option<&'a dyn Memory<f32>>,
    bias: Option<Bias<'a>>,
    variant: Option<(&'a OwnVariant, &'a [Table<'a>])>,
    splits: Splits,
    /// The number of groups, the number of pages of a prefix, and the keys of each sequence behind it.
    shared_prefixes: Option<(usize, usize, Integers<'a>)>,
}

/// The place of keys and values.
#[derive(Clone, Copy)]
enum Source<'a, T, C> {
    Tensors { k: Tensor<'a, T>, v: Tensor<'a, T>, starts: Option<Starts<'a>> },
    Cache(Cache<'a, C>),
}

/// Offsets of varlen keys, valid keys per sequence, and the maximum number of keys per sequence.
#[derive(Clone, Copy)]
struct Starts<'a> {
    k: Integers<'a>,
    used: Option<Integers<'a>>,
    max_k: usize,
}

impl<'a, T: Element> Inputs<'a, T> {
    /// See [`AttentionRequest::dense`].
    pub fn dense(q: Tensor<'a, T>, k: Tensor<'a, T>, v: Tensor<'a, T>) -> Self {
        Self::new(q, Source::Tensors { k, v, starts: None })
    }

    /// Creates inputs of varlen sequences; see [`AttentionRequest::varlen`]. `cu_seqlens_q` and
    /// `cu_seqlens_k` have `n + 1` integers for `n` sequences.
    pub fn varlen(
        q: Tensor<'a, T>,
        k: Tensor<'a, T>,
        v: Tensor<'a, T>,
        cu_seqlens_q: impl Into<Integers<'a>>,
        cu_seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
    ) -> Self {
        let starts = Some(Starts { k: cu_seqlens_k.into(), used: None, max_k: max_seqlen_k });
        let queries = Some((cu_seqlens_q.into(), max_seqlen_q));
        Inputs { queries, ..Self::new(q, Source::Tensors { k, v, starts }) }
    }

    /// Sets the number of valid keys of each varlen sequence ([`VarlenKeys::seqused_k`]). Other inputs ignore
    /// it.
    pub fn seqused_k(mut self, seqused_k: impl Into<Integers<'a>>) -> Self {
        if let Source::Tensors { starts: Some(starts), .. } = &mut self.kv {
            starts.used = Some(seqused_k.into());
        }
        self
    }
}

impl<'a, T: Element, C: Number> Inputs<'a, T, C> {
    fn new(q: Tensor<'a, T>, kv: Source<'a, T, C>) -> Self {
        let (mask, alignment, splits) = (Shown::Plain(Mask::Full), Alignment::BottomRight, Splits::Auto);
        let (queries, scale, softcap, alibi, sinks, bias) = (None, None, None, None, None, None);
        let (variant, shared_prefixes) = (None, None);
        Inputs {
            q,
            queries,
            kv,
            mask,
            alignment,
            scale,
            softcap,
            alibi,
            sinks,
            bias,
            variant,
            splits,
            shared_prefixes,
        }
    }

    /// See [`AttentionRequest::cached`]: `q` is `[batch, queries, heads, head_dim]`.
    pub fn cached(q: Tensor<'a, T>, cache: Cache<'a, C>) -> Self {
        Self::new(q, Source::Cache(cache))
    }

    /// Makes the queries on a cache varlen, with at most `max_seqlen_q` queries per sequence. `cu_seqlens_q`
    /// has `n + 1` integers for `n` sequences. `q` is `[1, rows, heads, head_dim]`. Sequences may have few
    /// and many queries ([`AttentionRequest::queries`]).
    pub fn varlen_queries(self, cu_seqlens_q: impl Into<Integers<'a>>, max_seqlen_q: usize) -> Self {
        Inputs { queries: Some((cu_seqlens_q.into(), max_seqlen_q)), ..self }
    }

    /// Sets a mask that needs no device memory; see [`AttentionRequest::mask`].
    pub fn mask(self, mask: Mask) -> Self {
        Inputs { mask: Shown::Plain(mask), ..self }
    }

    /// Sets [`Mask::Prefix`], with the number of keys of each sequence's prefix.
    pub fn prefix_lengths(self, lengths: impl Into<Integers<'a>>) -> Self {
        Inputs { mask: Shown::Prefix(lengths.into()), ..self }
    }

    /// Sets [`Mask::Bits`]: trees of drafts, or any mask.
    pub fn mask_bits(self, bits: MaskBits<'a>) -> Self {
        Inputs { mask: Shown::Bits(bits), ..self }
    }

    /// See [`AttentionRequest::alignment`].
    pub fn alignment(self, alignment: Alignment) -> Self {
        Inputs { alignment, ..self }
    }

    /// See [`AttentionRequest::scale`].
    pub fn scale(self, scale: f32) -> Self {
        Inputs { scale: Some(scale), ..self }
    }

    /// See [`AttentionRequest::softcap`]. 0 turns it off.
    pub fn softcap(self, softcap: f32) -> Self {
        Inputs { softcap: (softcap != 0.0).then_some(softcap), ..self }
    }

    /// See [`AttentionRequest::alibi`]: one slope per query head, or per sequence and query head.
    pub fn alibi(self, slopes: PerHead<'a>) -> Self {
        Inputs { alibi: Some(slopes), ..self }
    }

    /// See [`AttentionRequest::sinks`]: one logit per query head.
    pub fn sinks(self, sinks: &'a impl Memory<f32>) -> Self {
        Inputs { sinks: Some(sinks), ..self }
    }

    /// See [`AttentionRequest::bias`].
    pub fn bias(self, bias: Bias<'a>) -> Self {
        Inputs { bias: Some(bias), ..self }
    }

    /// Runs a variant of your own with these tables, at most 4; see [`AttentionRequest::variant`].
    pub fn variant(self, variant: &'a OwnVariant, tables: &'a [Table<'a>]) -> Self {
        Inputs { variant: Some((variant, tables)), ..self }
    }

    /// Shares the first `pages` pages of `count` groups of equal numbers of consecutive sequences on a paged
    /// cache; `rest` has the keys of each sequence behind these pages. Padding sequences, too, need at least
    /// the keys of these pages. See [`SharedPrefixes::equal`].
    pub fn shared_prefixes(self, count: usize, pages: usize, rest: impl Into<Integers<'a>>) -> Self {
        Inputs { shared_prefixes: Some((count, pages, rest.into())), ..self }
    }

    /// See [`AttentionRequest::splits`].
    pub fn splits(self, splits: Splits) -> Self {
        Inputs { splits, ..self }
    }

    /// Returns the shape of O: the shape of `q`, with the number of the values' columns.
    fn o_shape(&self) -> [usize; 4] {
        let [batch, rows, heads, _] = self.q.shape;
        let columns = match &self.kv {
            Source::Cache(cache) => cache.columns(),
            Source::Tensors { v, .. } => v.shape[3],
        };
        [batch, rows, heads, columns]
    }

    /// Returns the request. `guards` holds the request's inputs for a stream. The output has no memory yet.
    fn on(&self, guards: &mut StreamGuards<'a>) -> Result<AttentionRequest<'static>, Error> {
        let (q, o) = (self.q.on(guards, "q")?, Tensor::<T>::output(self.o_shape()));
        let request = match self.kv {
            Source::Cache(cache) => AttentionRequest::cached(q, cache.on(guards)?, o),
            Source::Tensors { k, v, starts } => {
                let (k, v) = (k.on(guards, "k")?, v.on(guards, "v")?);
                let mut request = AttentionRequest::dense(q, k, v, o);
                if let Some(Starts { k: starts, used, max_k }) = starts {
                    let mut keys = VarlenKeys::new(guards.integers("cu_seqlens_k", starts)?, max_k);
                    keys.seqused_k = used.map(|used| guards.integers("seqused_k", used)).transpose()?;
                    request.kv = KeysValues::Varlen { k, v, keys };
                }
                request
            }
        };
        let mut scores = Scores::new();
        (scores.scale, scores.softcap) = (self.scale, self.softcap);
        if let Some(PerHead { data, strides }) = self.alibi {
            let (address, elements) = guards.read("alibi", data)?;
            scores.alibi = Some(AlibiSlopes::new(address, elements).strides(strides));
        }
        if let Some(sinks) = self.sinks {
            let (address, elements) = guards.read("sinks", sinks)?;
            scores.sinks = Some(Sinks { address, elements });
        }
        scores.bias = self.bias.map(|bias| bias.on(guards)).transpose()?;
        let mask = self.mask.on(guards)?;
        let mut queries = Queries::Batched;
        if let Some((starts, max_seqlen_q)) = self.queries {
            let starts = guards.integers("cu_seqlens_q", starts)?;
            // An empty buffer means no sequence, which planning rejects.
            let batch = starts.elements.saturating_sub(1) as usize;
            queries = Queries::Varlen(VarlenQueries::new(batch, starts, max_seqlen_q));
        }
        let request = request.queries(queries).scores(scores).splits(self.splits);
        let mut request = request.mask(mask).alignment(self.alignment);
        let with_tables =
            |(variant, tables): (&OwnVariant, &[Table<'a>])| variant.on(tables, &request, guards);
        request.variant = self.variant.map(with_tables).transpose()?;
        if let Some((count, pages, rest)) = self.shared_prefixes {
            let rest = guards.integers("shared_prefixes.rest", rest)?;
            request.shared_prefixes = Some(SharedPrefixes::equal(count, pages, rest));
        }
        Ok(request)
    }
}

/// Returns the contiguous LSE of an output. `guards` holds the LSE's memory for a stream.
pub(super) fn lse<'t, 'a: 't, const MOST: usize>(
    guards: &mut StreamGuards<'t, MOST>,
    lse: Option<&'a mut (dyn MemoryMut<f32> + 'a)>,
    [batch, seqlen, heads, _]: [usize; 4],
) -> Result<Option<LseView>, Error> {
    let Some(lse) = lse else { return Ok(None) };
    let (address, elements) = guards.write("lse", lse)?;
    Ok(Some(LseView::contiguous(address, elements, [batch, heads, seqlen])))
}

impl FlashAttention {
    /// Grows `scratch` to the size that launches of these inputs need. Other inputs of equal sizes need no
    /// more memory. Allocates in the order of `stream`.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`]. Returns [`Error::Unsupported`] if `scratch` must
    /// grow while `stream` captures a graph, because the graph would own the memory.
    pub fn reserve<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_, T, C>,
        scratch: &mut ScratchMemory,
    ) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let (needed, capturing) = (self.planned(&inputs.on(&mut guards)?)?.scratch_bytes(), guards.capturing);
        drop(guards);
        scratch.grow(self, stream, capturing, needed)
    }

    /// Computes attention on `stream` and returns O, contiguous and of the shape of `q`, with the values'
    /// number of columns. Padding rows of O are 0. `scratch` grows to the size that the
    /// fastest kernel needs; keep it from call to call.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] and [`Error::Unsupported`] name the value or the feature. [`Error::Driver`]
    /// has the driver's error. Rejected inputs keep no memory.
    pub fn attend<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_, T, C>,
        scratch: &mut ScratchMemory,
    ) -> Result<CudaSlice<T>, Error> {
        self.reserve(stream, inputs, scratch)?;
        let mut o = output(stream, inputs.o_shape().iter().product(), inputs.queries.is_some())?;
        self.attend_into(stream, inputs, scratch, TensorMut::new(&mut o, inputs.o_shape()), None)?;
        Ok(o)
    }

    /// Returns the result of [`FlashAttention::attend`] and the log-sum-exp of each row, contiguous `[batch,
    /// heads, seqlen]`, as in [`LseView`]. Padding rows have -inf, so a merge gives them no weight.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn attend_with_lse<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_, T, C>,
        scratch: &mut ScratchMemory,
    ) -> Result<(CudaSlice<T>, CudaSlice<f32>), Error> {
        self.reserve(stream, inputs, scratch)?;
        let ([batch, seqlen, heads, _], varlen) = (inputs.q.shape, inputs.queries.is_some());
        let mut o = output(stream, inputs.o_shape().iter().product(), varlen)?;
        let mut lse = log_sum_exps(stream, batch * heads * seqlen, varlen)?;
        self.attend_into(stream, inputs, scratch, TensorMut::new(&mut o, inputs.o_shape()), Some(&mut lse))?;
        Ok((o, lse))
    }

    /// Writes the result of [`FlashAttention::attend`] to `o`. If `lse` is given, also writes the log-sum-exp
    /// of each row there, contiguous `[batch, heads, seqlen]`. Allocates nothing:
    /// [reserve](FlashAttention::reserve) the scratch memory first. Padding rows of both outputs do not
    /// change.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`], or [`Error::Invalid`] if `scratch` is too small.
    pub fn attend_into<T: Element, C: Number>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_, T, C>,
        scratch: &mut ScratchMemory,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let mut request = inputs.on(&mut guards)?;
        request.o = o.on(&mut guards, "o")?;
        request.lse = self::lse(&mut guards, lse, inputs.q.shape)?;
        request.scratch = scratch.on(&mut guards)?;
        let plan = self.planned(&request)?;
        // SAFETY: `guards` holds every buffer of the request for this stream; the counters are zero, because
        // each launch leaves zeros.
        unsafe { guards.launch(&plan, &request) }
    }

    /// Computes what [`FlashAttention::attend`] computes, for functions with candle-flash-attn's arguments.
    /// This function allocates a workspace, and frees it in the order of the stream.
    pub(super) fn attend_alone<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_, T>,
    ) -> Result<CudaSlice<T>, Error> {
        let mut workspace;
        let bytes =
            self.planned(&inputs.on(&mut StreamGuards::on(self, stream)?)?)?.scratch_bytes().workspace;
        let mut o = output(stream, inputs.o_shape().iter().product(), inputs.queries.is_some())?;
        let mut guards = StreamGuards::on(self, stream)?;
        let mut request = inputs.on(&mut guards)?;
        request.o = TensorMut::new(&mut o, inputs.o_shape()).on(&mut guards, "o")?;
        if bytes > 0 {
            // SAFETY: the launch reads nothing that it has not written.
            workspace = unsafe { stream.alloc::<u8>(bytes as usize) }.map_err(refused("alloc"))?;
            let (address, bytes) = guards.write("workspace", &mut workspace)?;
            request.scratch = Scratch::workspace(address, bytes);
        }
        let plan = self.planned(&request)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &request) }?;
        drop(guards);
        Ok(o)
    }

    /// Returns the plan of a request that may use all the scratch memory that it needs. Takes the plan from
    /// the cache, or makes it.
    fn planned(&self, request: &AttentionRequest<'static>) -> Result<Plan, Error> {
        self.plans.of(&self.attention, request)
    }
}

/// Allocates memory for O. Kernels do not write padding rows; this function sets them to 0.
fn output<T: Number>(stream: &Arc<CudaStream>, elements: usize, varlen: bool) -> Result<CudaSlice<T>, Error> {
    let memory = match varlen {
        true => stream.alloc_zeros(elements),
        // SAFETY: the kernel writes every element before any later work of the stream reads one.
        false => unsafe { stream.alloc(elements) },
    };
    memory.map_err(refused("alloc"))
}

/// Allocates memory for log-sum-exps. Kernels do not write padding rows. This function sets them to -inf,
/// because such a row has seen no key.
fn log_sum_exps(stream: &Arc<CudaStream>, rows: usize, varlen: bool) -> Result<CudaSlice<f32>, Error> {
    // SAFETY: the kernel, or the fill below, writes every element before any later work of the stream reads
    // one.
    let mut memory = unsafe { stream.alloc::<f32>(rows) }.map_err(refused("alloc"))?;
    if varlen {
        let (address, _used) = memory.device_ptr_mut(stream);
        // SAFETY: the memory has this number of f32; `alloc` has bound the stream's context; the fill runs in
        // the stream's order.
        let filled = unsafe {
            sys::cuMemsetD32Async(address, f32::NEG_INFINITY.to_bits(), rows, stream.cu_stream()).result()
        };
        filled.map_err(refused("cuMemsetD32Async"))?;
    }
    Ok(memory)
}
