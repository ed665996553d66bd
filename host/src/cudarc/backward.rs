//! The backward pass of attention on cudarc's slices.
use super::attention::Inputs;
use super::front::{FlashAttention, refused};
use super::memory::{Element, Slice, SliceMut, StreamGuards};
use super::scratch::ScratchMemory;
use super::views::{Tensor, TensorMut};
use crate::Error;
use crate::request::{AttentionBackward, AttentionRequest, LseView, Queries};
use crate::validate::no_tensors;
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// The most slices of a launch: those of the forward, four gradients, the LSE's gradient, and a workspace.
const MOST: usize = 32;

/// A backward pass in cudarc's slices. Its forward is [`Inputs::with_results`]. A launch ignores the
/// request's scratch memory, which has its own argument.
///
/// A gradient cannot share memory with a tensor that the kernels read:
///
/// ```compile_fail,E0502
/// # use cudarc::driver::CudaSlice;
/// # use ferroflash::cudarc::{Backward, Inputs, Slice, Tensor, TensorMut};
/// # use half::bf16;
/// const SHAPE: [usize; 4] = [1, 128, 8, 64];
/// type Data = CudaSlice<bf16>;
/// fn unsound(mut q: Data, o: Data, lse: CudaSlice<f32>, mut dkv: [Data; 2]) {
///     let (of_q, of_o) = (Tensor::of(&q, SHAPE), Tensor::of(&o, SHAPE));
///     let forward = Inputs::of(of_q, of_q, of_q).with_results(of_o, Slice::new(&lse));
///     let [dk, dv] = dkv.each_mut().map(|data| TensorMut::of(data, SHAPE));
///     let _ = Backward::new(forward, of_o, TensorMut::of(&mut q, SHAPE), dk, dv);
/// }
/// ```
pub type Backward<'a> = AttentionBackward<'a, Slice<'a>, SliceMut<'a>>;

impl<'a> Inputs<'a> {
    /// Returns the request of a forward that has run, for its backward pass: `o` and `lse` are its results.
    /// The LSE is contiguous `[batch, heads, seqlen]`, as [`FlashAttention::attend_with_lse`] returns it.
    pub fn with_results<'b>(self, o: Tensor<'b>, lse: Slice<'b>) -> AttentionRequest<'b, Slice<'b>>
    where
        'a: 'b,
    {
        let [batch, seqlen, heads, _] = self.q.shape;
        let AttentionRequest { q, queries, kv, mask, alignment, scores, variant, .. } = self;
        let request = AttentionRequest::new(q, queries, kv, o).mask(mask).scores(scores);
        let request =
            request.alignment(alignment).lse(LseView::contiguous(lse, u64::MAX, [batch, heads, seqlen]));
        AttentionRequest { variant, ..request }
    }
}

impl<'a> Backward<'a> {
    /// Returns the request of addresses. `guards` holds its slices for a stream.
    fn held<'t>(self, guards: &mut StreamGuards<'t, MOST>) -> Result<AttentionBackward<'a>, Error>
    where
        'a: 't,
    {
        let variant = self.forward.variant;
        let mut request = self.on(guards)?;
        let with_tables = |(variant, tables): (&super::OwnVariant, &[Slice<'a>])| {
            variant.on(tables, &request.forward, guards)
        };
        request.forward.variant = variant.map(with_tables).transpose()?;
        Ok(request)
    }
}

impl FlashAttention {
    /// Returns the gradients of Q, K and V, contiguous and of their shapes. `o` and `lse` are what
    /// [`FlashAttention::attend_with_lse`] returned for these inputs; `d_o` is the gradient of O. Kernels
    /// exist with the feature `training`.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::backward_into`].
    pub fn backward<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: &Inputs<'_>,
        (o, lse): (Tensor<'_>, Slice<'_>),
        d_o: Tensor<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<[CudaSlice<T>; 3], Error> {
        let [k, v] = inputs.kv.tensors().ok_or_else(no_tensors)?;
        let shapes = [inputs.q.shape, k.shape, v.shape];
        // Padding rows of varlen sequences have gradients of 0.
        let zeroed = matches!(inputs.queries, Queries::Varlen(_));
        let gradient = |shape: [usize; 4]| {
            let elements = shape.iter().product();
            let memory = match zeroed {
                true => stream.alloc_zeros(elements),
                // SAFETY: the kernels write every element before any later work of the stream reads one.
                false => unsafe { stream.alloc(elements) },
            };
            memory.map_err(refused("alloc"))
        };
        let mut gradients = [gradient(shapes[0])?, gradient(shapes[1])?, gradient(shapes[2])?];
        let [dq, dk, dv] = &mut gradients;
        let [dq, dk, dv] =
            [TensorMut::of(dq, shapes[0]), TensorMut::of(dk, shapes[1]), TensorMut::of(dv, shapes[2])];
        let request = AttentionBackward::new(inputs.shorter().with_results(o, lse), d_o, dq, dk, dv);
        self.backward_into(stream, request, scratch)?;
        Ok(gradients)
    }

    /// Writes the gradients of Q, K and V to the request's memory. `scratch` grows in the order of `stream`
    /// if it is too small; a launch of equal sizes needs no more memory.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`]. Returns [`Error::Unsupported`] if `scratch` must
    /// grow while `stream` captures a graph: launch once before the capture.
    pub fn backward_into(
        &self,
        stream: &Arc<CudaStream>,
        request: Backward<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let mut request = request.held(&mut guards)?;
        let plan = self.attention.plan(&request)?;
        scratch.grow(self, stream, guards.capturing, plan.scratch_bytes())?;
        request.scratch = scratch.on(&mut guards)?;
        // SAFETY: `guards` holds every buffer of the request for this stream; backward passes use no
        // counters.
        unsafe { guards.launch(&plan, &request) }
    }
}
