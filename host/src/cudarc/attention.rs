//! Attention on cudarc's slices: the request, and the functions that launch it.
use super::front::{FlashAttention, refused};
use super::memory::{Element, Slice, SliceMut, StreamGuards};
use super::scratch::ScratchMemory;
use super::variant::OwnVariant;
use super::views::{Cache, Listed, Tensor, TensorMut};
use crate::Error;
use crate::plan::ScratchBytes;
use crate::request::{AttentionRequest, LseView, Queries, RowOutputs, TensorView, VarlenKeys, VarlenQueries};
use ::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, sys};
use std::sync::Arc;

/// A request in cudarc's slices, without the memory of its output: the launch allocates O, or gets it beside
/// the inputs. The setters are those of [`AttentionRequest`]. A launch ignores the request's scratch memory
/// and outputs of rows: `attend_with` gets the wanted ones, and [`WithOutputs`] has memory for them.
///
/// | keys and values | constructor |
/// |---|---|
/// | tensors, sequences of equal lengths | [`Inputs::of`] |
/// | tensors, varlen sequences | [`Inputs::of_varlen`] |
/// | a KV cache, to decode or to prefill | [`Inputs::of_cache`] |
/// | a latent cache, with a list of keys for each query | [`Inputs::of_sparse`] |
///
/// Safe code cannot name memory by its address:
///
/// ```compile_fail,E0308
/// # use ferroflash::cudarc::Inputs;
/// # use ferroflash::request::{Index, Mask, Prefix};
/// fn unsound(inputs: Inputs<'_>) {
///     let _ = inputs.mask(Mask::Prefix(Prefix::Each(Index::new(1u64 << 40, 1))));
/// }
/// ```
pub type Inputs<'a> = AttentionRequest<'a, Slice<'a>, ()>;

/// A request with the memory of its outputs: see [`AttentionRequest::writing`]. A launch ignores the
/// request's scratch memory, which has its own argument.
pub type WithOutputs<'a> = AttentionRequest<'a, Slice<'a>, SliceMut<'a>>;

/// The outputs of rows of a launch: those that were wanted.
pub type RowSlices = RowOutputs<Option<CudaSlice<f32>>>;

impl<'a> AttentionRequest<'a, Slice<'a>, ()> {
    /// See [`AttentionRequest::dense`].
    pub fn of(q: Tensor<'a>, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        AttentionRequest::dense(q, k, v, output(&q, v.shape[3]))
    }

    /// See [`AttentionRequest::varlen`].
    pub fn of_varlen(
        q: Tensor<'a>,
        k: Tensor<'a>,
        v: Tensor<'a>,
        queries: VarlenQueries<Slice<'a>>,
        keys: VarlenKeys<Slice<'a>>,
    ) -> Self {
        AttentionRequest::varlen(q, k, v, output(&q, v.shape[3]), queries, keys)
    }

    /// See [`AttentionRequest::cached`]: `q` is `[batch, queries, heads, head_dim]`, or with
    /// [`AttentionRequest::queries`] `[1, rows, heads, head_dim]`.
    pub fn of_cache(q: Tensor<'a>, cache: Cache<'a>) -> Self {
        AttentionRequest::cached(q, cache, output(&q, cache.pages.values.shape[3]))
    }

    /// See [`AttentionRequest::sparse`]: `q` is `[queries, 1, heads, columns]`, and the keys are
    /// `ListedKeys::new(Pages::latent(rows, columns), Integers::of(&indices), topk)`.
    pub fn of_sparse(q: Tensor<'a>, keys: Listed<'a>) -> Self {
        AttentionRequest::sparse(q, keys, output(&q, keys.pages.values.shape[3]))
    }

    /// Runs a variant of your own with these tables, at most 4; see [`AttentionRequest::variant`].
    pub fn own(self, variant: &'a OwnVariant, tables: &'a [Slice<'a>]) -> Self {
        AttentionRequest { variant: Some((variant, tables)), ..self }
    }

    /// Returns the request for a shorter time, so that its other parts may be in memory that lives shorter.
    pub fn shorter<'b>(mut self) -> Inputs<'b>
    where
        'a: 'b,
    {
        let (o, rows) = (self.o, self.take_rows());
        self.with_output(o).with_rows(rows)
    }

    /// Gives O memory. [`WithOutputs`] has setters for the memory of the outputs of rows.
    pub fn writing<'b>(self, o: TensorMut<'b>) -> WithOutputs<'b>
    where
        'a: 'b,
    {
        self.with_output(o)
    }

    /// Returns the request with this O, and without outputs of rows.
    pub(super) fn with_output<'b, W>(self, o: TensorView<W>) -> AttentionRequest<'b, Slice<'b>, W>
    where
        'a: 'b,
    {
        let AttentionRequest { q, queries, kv, mask, scores, descales, shared_prefixes, .. } = self;
        let AttentionRequest { variant, config, .. } = self;
        let request = AttentionRequest::new(q, queries, kv, o).with_options(self.options());
        AttentionRequest { mask, scores, descales, shared_prefixes, variant, config, ..request }
    }

    /// Whether rows of Q may belong to no sequence.
    pub(super) fn is_varlen(&self) -> bool {
        matches!(self.queries, Queries::Varlen(_))
    }
}

/// Returns an output without memory, contiguous and of the shape of `q`, with this number of columns.
fn output(q: &Tensor<'_>, columns: usize) -> TensorView<()> {
    let [batch, rows, heads, _] = q.shape;
    TensorView::bshd((), u64::MAX, q.dtype, [batch, rows, heads, columns])
}

impl FlashAttention {
    /// Grows `scratch` to the size that launches of these inputs need. Other inputs of equal sizes need no
    /// more memory. Allocates in the order of `stream`.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`]. Returns [`Error::Unsupported`] if `scratch` must
    /// grow while `stream` captures a graph, because the graph would own the memory.
    pub fn reserve(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<(), Error> {
        let remedy = "call FlashAttention::reserve before the capture";
        scratch.grow(self, stream, self.needed(stream, inputs)?, remedy)
    }

    /// Returns the size of the scratch memory that launches of these inputs need.
    fn needed(&self, stream: &CudaStream, inputs: &Inputs<'_>) -> Result<ScratchBytes, Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        Ok(self.plans.of(&self.attention, &inputs.on(&mut guards)?)?.scratch_bytes())
    }

    /// Computes attention on `stream` and returns O, contiguous and of the shape of `q`, with the values'
    /// number of columns. Padding rows of O are 0. `scratch` grows to the size that the
    /// fastest kernel needs; keep it from call to call.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] and [`Error::Unsupported`] name the value or the feature. [`Error::Driver`]
    /// has the driver's error. Rejected inputs keep no memory.
    pub fn attend<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<CudaSlice<T>, Error> {
        Ok(self.attend_with(stream, inputs, RowOutputs::NONE, scratch)?.0)
    }

    /// Returns the result of [`FlashAttention::attend`] and the log-sum-exp of each row, contiguous `[batch,
    /// heads, seqlen]`, as in [`LseView`]. Padding rows have -inf, so a merge gives them no weight.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn attend_with_lse<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<(CudaSlice<T>, CudaSlice<f32>), Error> {
        let (o, rows) = self.attend_with(stream, inputs, RowOutputs::LSE, scratch)?;
        Ok((o, rows.lse.ok_or_else(|| Error::invalid("lse", "none", "an output that the call wants"))?))
    }

    /// Returns the result of [`FlashAttention::attend`] and the wanted outputs of rows, each contiguous
    /// `[batch, heads, seqlen]`. Padding rows have -inf.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn attend_with<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        wanted: RowOutputs<bool>,
        scratch: &mut ScratchMemory,
    ) -> Result<(CudaSlice<T>, RowSlices), Error> {
        let [batch, seqlen, heads, _] = inputs.q.shape;
        let view = || LseView::contiguous((), u64::MAX, [batch, heads, seqlen]);
        let views = wanted.map(|_, wanted| wanted.then(view));
        self.reserve(stream, &inputs.with_rows(views), scratch)?;
        self.attend_reserved(stream, inputs, wanted, scratch)
    }

    /// Computes [`FlashAttention::attend_with`] in scratch memory that is large enough.
    fn attend_reserved<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        wanted: RowOutputs<bool>,
        scratch: &mut ScratchMemory,
    ) -> Result<(CudaSlice<T>, RowSlices), Error> {
        let [batch, seqlen, heads, _] = inputs.q.shape;
        let allocate = |_, wanted: bool| {
            wanted.then(|| values(stream, batch * heads * seqlen, inputs.is_varlen())).transpose()
        };
        let (mut o, mut rows) =
            (new::<T>(stream, inputs.o.shape, inputs.is_varlen())?, wanted.try_map(allocate)?);
        let views = rows.as_mut().map(|_, data| Some(LseView::of(data.as_mut()?, inputs.q.shape)));
        let request = inputs.writing(TensorMut::of(&mut o, inputs.o.shape)).with_rows(views);
        self.attend_into(stream, request, scratch)?;
        Ok((o, rows))
    }

    /// Writes the result of [`FlashAttention::attend`], and the request's outputs of rows, to the request's
    /// memory. Allocates nothing: [reserve](FlashAttention::reserve) the scratch memory first. Padding rows
    /// of the outputs do not change.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`], or [`Error::Invalid`] if `scratch` is too small.
    pub fn attend_into(
        &self,
        stream: &Arc<CudaStream>,
        request: WithOutputs<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let mut request = request.on(&mut guards)?;
        request.scratch = scratch.on(&mut guards)?;
        let plan = self.plans.of(&self.attention, &request)?;
        // SAFETY: `guards` holds every buffer of the request for this stream; the counters are zero, because
        // each launch leaves zeros.
        unsafe { guards.launch(&plan, &request) }
    }

    /// Computes what [`FlashAttention::attend`] computes, for functions with candle-flash-attn's arguments.
    /// This function allocates a workspace, and frees it in the order of the stream.
    pub(super) fn attend_alone<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
    ) -> Result<CudaSlice<T>, Error> {
        let mut scratch = ScratchMemory::alone(stream, self.needed(stream, inputs)?.workspace)?;
        let results = self.attend_reserved(stream, inputs, RowOutputs::NONE, &mut scratch);
        // A graph that captures the launch also captures the workspace's allocation and its end.
        scratch.captured = false;
        Ok(results?.0)
    }
}

/// Allocates memory for O or a gradient. Kernels do not write padding rows of varlen tensors; this function
/// sets them to 0.
pub(super) fn new<T: Element>(
    stream: &Arc<CudaStream>,
    shape: [usize; 4],
    varlen: bool,
) -> Result<CudaSlice<T>, Error> {
    let elements = shape.iter().product();
    let memory = match varlen {
        true => stream.alloc_zeros(elements),
        // SAFETY: the kernels write every element before any later work of the stream reads one.
        false => unsafe { stream.alloc(elements) },
    };
    memory.map_err(refused("alloc"))
}

/// Allocates memory for an output of rows. Kernels do not write padding rows. This function sets them to
/// -inf, because such a row has seen no key.
fn values(stream: &Arc<CudaStream>, rows: usize, varlen: bool) -> Result<CudaSlice<f32>, Error> {
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
