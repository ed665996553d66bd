//! The backward pass of attention on cudarc's slices.
use super::attention::{Inputs, new};
use super::front::FlashAttention;
use super::memory::{Element, Memory, Slice, SliceMut, StreamGuards};
use super::scratch::ScratchMemory;
use super::views::{Tensor, TensorMut};
use crate::Error;
use crate::plan::PlanOf;
use crate::request::{AttentionBackward, AttentionRequest, LseView, TensorView};
use crate::validate::no_tensors;
use ::cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// How scratch memory grows before a capture.
const REMEDY: &str = "launch once before the capture";

/// A backward pass in cudarc's slices. Its forward is [`Inputs::with_results`]. A launch ignores the
/// request's scratch memory, which has its own argument.
///
/// A gradient cannot share memory with a tensor that the kernels read:
///
/// ```compile_fail,E0502
/// # use cudarc::driver::CudaSlice;
/// # use ferroflash::cudarc::{Backward, Inputs, Tensor, TensorMut};
/// # use half::bf16;
/// const SHAPE: [usize; 4] = [1, 128, 8, 64];
/// type Data = CudaSlice<bf16>;
/// fn unsound(mut q: Data, o: Data, lse: CudaSlice<f32>, mut dkv: [Data; 2]) {
///     let (of_q, of_o) = (Tensor::of(&q, SHAPE), Tensor::of(&o, SHAPE));
///     let forward = Inputs::of(of_q, of_q, of_q).with_results(of_o, &lse);
///     let [dk, dv] = dkv.each_mut().map(|data| TensorMut::of(data, SHAPE));
///     let _ = Backward::new(forward, of_o, TensorMut::of(&mut q, SHAPE), dk, dv);
/// }
/// ```
pub type Backward<'a> = AttentionBackward<'a, Slice<'a>, SliceMut<'a>>;

impl<'a> Inputs<'a> {
    /// Returns the request of a forward that has run, for its backward pass: `o` and `lse` are its results.
    /// The LSE is contiguous `[batch, heads, seqlen]`, as [`FlashAttention::attend_with_lse`] returns it.
    ///
    /// ```compile_fail,E0277
    /// # use cudarc::driver::CudaSlice;
    /// # use ferroflash::cudarc::{Inputs, Tensor};
    /// # use half::bf16;
    /// fn other_numbers<'a>(inputs: Inputs<'a>, o: Tensor<'a>, lse: &'a CudaSlice<bf16>) {
    ///     let _ = inputs.with_results(o, lse);
    /// }
    /// ```
    pub fn with_results<'b>(self, o: Tensor<'b>, lse: &'b impl Memory<f32>) -> AttentionRequest<'b, Slice<'b>>
    where
        'a: 'b,
    {
        let lse = LseView::read(lse, self.q.shape);
        self.with_output(o).lse(lse)
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
        (o, lse): (Tensor<'_>, &impl Memory<f32>),
        d_o: Tensor<'_>,
        scratch: &mut ScratchMemory,
    ) -> Result<[CudaSlice<T>; 3], Error> {
        let [k, v] = inputs.kv.tensors().ok_or_else(no_tensors)?;
        let shapes = [inputs.q.shape, k.shape, v.shape];
        let forward = || inputs.shorter().with_results(o, lse);
        // The gradients get memory only after planning has accepted the request and its sizes.
        let [dq, dk, dv] = shapes.map(|shape| TensorView::bshd((), u64::MAX, T::DTYPE, shape));
        let request = AttentionBackward::new(forward(), d_o, dq, dk, dv);
        let plan = self.attention.plan(&request.on(&mut StreamGuards::on(self, stream)?)?)?;
        scratch.grow(self, stream, plan.scratch_bytes(), REMEDY)?;
        let gradient = |shape| new::<T>(stream, shape, inputs.is_varlen());
        let mut gradients = [gradient(shapes[0])?, gradient(shapes[1])?, gradient(shapes[2])?];
        let [dq, dk, dv] = &mut gradients;
        let (dq, dk) = (TensorMut::of(dq, shapes[0]), TensorMut::of(dk, shapes[1]));
        let dv = TensorMut::of(dv, shapes[2]);
        self.run_backward(stream, AttentionBackward::new(forward(), d_o, dq, dk, dv), Some(plan), scratch)?;
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
        self.run_backward(stream, request, None, scratch)
    }

    /// Launches a backward pass by its plan, or plans it first.
    fn run_backward<'a>(
        &self,
        stream: &Arc<CudaStream>,
        request: Backward<'a>,
        plan: Option<PlanOf<AttentionBackward<'a>>>,
        scratch: &mut ScratchMemory,
    ) -> Result<(), Error> {
        let mut guards = StreamGuards::on(self, stream)?;
        let mut request = request.on(&mut guards)?;
        let plan = plan.map_or_else(|| self.attention.plan(&request), Ok)?;
        scratch.grow(self, stream, plan.scratch_bytes(), REMEDY)?;
        request.scratch = scratch.on(&mut guards)?;
        // SAFETY: `guards` holds every buffer of the request for this stream. Backward passes use no counters
        // of the scratch memory: they have theirs in the workspace, and their first kernel clears them.
        unsafe { guards.launch(&plan, &request) }
    }
}
