//! Attention on `cudarc`'s slices and streams, in safe Rust (feature `cudarc`).
//!
//! [`FlashAttention::flash_attn`] and [`FlashAttention::flash_attn_windowed`] have the names and the order of
//! arguments of candle-flash-attn, so that code that has slices rather than tensors moves without being
//! rewritten. [`FlashAttention::forward`] and its siblings take a [`Request`], which says everything that
//! this crate can be asked.
//!
//! ```no_run
//! use ferroflash::cudarc::{FlashAttention, Request, Tensor};
//! use ferroflash::Mask;
//! use cudarc::driver::CudaContext;
//! use half::f16;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let attention = FlashAttention::new(&context)?;
//! // 8 query heads on 2 key heads.
//! let q = stream.clone_htod(&vec![f16::ONE; 1000 * 8 * 64])?;
//! let kv = stream.clone_htod(&vec![f16::ONE; 1000 * 2 * 64])?;
//! let (q, kv) = (Tensor::new(&q, [1, 1000, 8, 64]), Tensor::new(&kv, [1, 1000, 2, 64]));
//! let o = attention.flash_attn(&stream, q, kv, kv, 0.125, true)?; // a CudaSlice<f16> of q's shape
//! // The same with capped scores, and the log-sum-exp of each row.
//! let request = Request::new(q, kv, kv).mask(Mask::Causal).softcap(30.0);
//! let (o, lse) = attention.forward_with_lse(&stream, &request)?;
//! # Ok(())
//! # }
//! ```
use crate::{
    Alignment, Attention, DType, Error, Forward, LseView, Mask, RawDriver, RawStream, TensorView, Workspace,
};
use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr,
    DriverError, SyncOnDrop,
};
use std::sync::Arc;

/// An element type that there are kernels for: `half::f16` and `half::bf16`, and no other.
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy)]
/// struct Byte(u8);
/// unsafe impl cudarc::driver::DeviceRepr for Byte {}
/// // It would claim two bytes an element, where slices of it have one.
/// impl ferroflash::cudarc::Element for Byte {
///     const DTYPE: ferroflash::DType = ferroflash::DType::F16;
/// }
/// ```
pub trait Element: DeviceRepr + Copy + sealed::Sealed {
    /// Its name in this crate.
    const DTYPE: DType;
}

impl sealed::Sealed for half::f16 {}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}

impl sealed::Sealed for half::bf16 {}
impl Element for half::bf16 {
    const DTYPE: DType = DType::Bf16;
}

/// Memory that an input may lie in: `CudaSlice`, `CudaView`, `CudaViewMut`. Only cudarc's own types, whose
/// addresses and lengths are true.
pub trait Memory<T>: DevicePtr<T> + sealed::Sealed {}

/// Memory that an output may lie in: `CudaSlice`, `CudaViewMut`.
pub trait MemoryMut<T>: DevicePtrMut<T> + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! memory {
    ($($trait:ident: $($name:ident $(<$life:lifetime>)?),*;)*) => {
        $($(impl<T> $trait<T> for $name<$($life,)? T> {})*)*
    };
}
impl<T> sealed::Sealed for CudaSlice<T> {}
impl<T> sealed::Sealed for CudaView<'_, T> {}
impl<T> sealed::Sealed for CudaViewMut<'_, T> {}
memory! {
    Memory: CudaSlice, CudaView<'_>, CudaViewMut<'_>;
    MemoryMut: CudaSlice, CudaViewMut<'_>;
}

fn view<T: Element>(address: u64, len: usize, shape: [usize; 4], strides: Option<[i64; 4]>) -> TensorView {
    let contiguous = TensorView::bshd(address, len as u64, T::DTYPE, shape);
    TensorView { strides: strides.unwrap_or(contiguous.strides), ..contiguous }
}

/// An input in a slice or a view of one.
#[derive(Clone, Copy)]
#[must_use]
pub struct Tensor<'a, T> {
    data: &'a dyn Memory<T>,
    shape: [usize; 4],
    strides: Option<[i64; 4]>,
}

impl<'a, T: Element> Tensor<'a, T> {
    /// `[batch, seqlen, heads, head_dim]`, contiguous.
    pub fn new(data: &'a impl Memory<T>, shape: [usize; 4]) -> Self {
        Tensor { data, shape, strides: None }
    }

    /// The same with other strides: elements from one batch, row, head and column to the next, as in
    /// [`TensorView::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        Tensor { strides: Some(strides), ..self }
    }
}

/// The output in a slice or a view of one.
#[must_use]
pub struct TensorMut<'a, T> {
    data: &'a mut dyn MemoryMut<T>,
    shape: [usize; 4],
    strides: Option<[i64; 4]>,
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// `[batch, seqlen, heads, head_dim]`, contiguous.
    pub fn new(data: &'a mut impl MemoryMut<T>, shape: [usize; 4]) -> Self {
        TensorMut { data, shape, strides: None }
    }

    /// The same with other strides, as [`Tensor::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        TensorMut { strides: Some(strides), ..self }
    }
}

/// What is asked for: [`Forward`] on cudarc's slices.
#[derive(Clone, Copy)]
#[must_use]
pub struct Request<'a, T> {
    q: Tensor<'a, T>,
    k: Tensor<'a, T>,
    v: Tensor<'a, T>,
    mask: Mask,
    alignment: Alignment,
    scale: Option<f32>,
    softcap: Option<f32>,
}

impl<'a, T: Element> Request<'a, T> {
    /// Full attention with a scale of `1 / sqrt(head_dim)`.
    pub fn new(q: Tensor<'a, T>, k: Tensor<'a, T>, v: Tensor<'a, T>) -> Self {
        let (mask, alignment) = (Mask::Full, Alignment::BottomRight);
        Request { q, k, v, mask, alignment, scale: None, softcap: None }
    }

    /// As [`Forward::mask`].
    pub fn mask(self, mask: Mask) -> Self {
        Request { mask, ..self }
    }

    /// As [`Forward::align`].
    pub fn align(self, alignment: Alignment) -> Self {
        Request { alignment, ..self }
    }

    /// As [`Forward::scale`].
    pub fn scale(self, scale: f32) -> Self {
        Request { scale: Some(scale), ..self }
    }

    /// As [`Forward::softcap`]: 0 is none.
    pub fn softcap(self, softcap: f32) -> Self {
        Request { softcap: (softcap != 0.0).then_some(softcap), ..self }
    }

    /// Its inputs' addresses in the order of `stream`, with outputs where no memory is.
    fn on(&self, stream: &'a CudaStream) -> Inputs<'a> {
        let at = |tensor: Tensor<'a, T>| {
            let (address, guard) = tensor.data.device_ptr(stream);
            (view::<T>(address, tensor.data.len(), tensor.shape, tensor.strides), guard)
        };
        let ((q, on_q), (k, on_k), (v, on_v)) = (at(self.q), at(self.k), at(self.v));
        let o = view::<T>(NOWHERE, usize::MAX, self.q.shape, None);
        let mut forward = Forward::new(q, k, v, o).mask(self.mask).align(self.alignment);
        (forward.scale, forward.softcap) = (self.scale, self.softcap);
        Inputs { forward, _guards: [on_q, on_k, on_v] }
    }
}

/// An address far from all buffers.
const NOWHERE: u64 = 1 << 60;

/// A request's inputs. The guards record, when they are dropped, that a stream has used the memory: after the
/// launch.
struct Inputs<'a> {
    forward: Forward<'static>,
    _guards: [SyncOnDrop<'a>; 3],
}

/// Attention on one of `cudarc`'s contexts. Kernels are loaded at their first use, and kept.
pub struct FlashAttention {
    attention: Attention<RawDriver>,
    context: Arc<CudaContext>,
}

impl FlashAttention {
    /// For slices and streams of `context`.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver refuses.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.bind_to_thread().map_err(refused("bind_to_thread"))?;
        let keeper = Arc::clone(context);
        // SAFETY: cudarc's context, which is current now, is destroyed when its last `Arc` is dropped.
        let driver = unsafe { RawDriver::current_of(Some(keeper))? };
        Ok(FlashAttention { attention: Attention::new(driver), context: Arc::clone(context) })
    }

    /// What plans and launches: for CUDA graphs, and for tensors that are not in cudarc's slices.
    pub fn attention(&self) -> &Attention<RawDriver> {
        &self.attention
    }

    /// `o = softmax(softmax_scale * q kᵀ) v` on `stream`, `o` being contiguous and of `q`'s shape. `causal`
    /// is aligned bottom-right.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn flash_attn<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_, T>,
        k: Tensor<'_, T>,
        v: Tensor<'_, T>,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        let mask = if causal { Mask::Causal } else { Mask::Full };
        self.forward(stream, &Request::new(q, k, v).scale(softmax_scale).mask(mask))
    }

    /// The same, each query seeing keys from `window_size_left` before to `window_size_right` behind its own
    /// position, both inclusive; `None` is unbounded.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    #[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
    pub fn flash_attn_windowed<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_, T>,
        k: Tensor<'_, T>,
        v: Tensor<'_, T>,
        softmax_scale: f32,
        window_size_left: Option<u32>,
        window_size_right: Option<u32>,
    ) -> Result<CudaSlice<T>, Error> {
        let mask = Mask::Window { left: window_size_left, right: window_size_right };
        self.forward(stream, &Request::new(q, k, v).scale(softmax_scale).mask(mask))
    }

    /// Attention on `stream`: O, contiguous and of `q`'s shape. What is refused allocates nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] name what is wrong, [`Error::Driver`] what the driver
    /// refuses.
    pub fn forward<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
    ) -> Result<CudaSlice<T>, Error> {
        let (mut o, inputs) = self.allocate(stream, request)?;
        self.launch(stream, inputs, TensorMut::new(&mut o, request.q.shape), None)?;
        Ok(o)
    }

    /// The same, and the log-sum-exp of each row: `[batch, heads, seqlen]`, contiguous, as in [`LseView`].
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn forward_with_lse<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
    ) -> Result<(CudaSlice<T>, CudaSlice<f32>), Error> {
        let (mut o, inputs) = self.allocate(stream, request)?;
        let [batch, seqlen, heads, _] = request.q.shape;
        // SAFETY: the kernel writes every element, in the stream's order before anybody else reads one.
        let lse = unsafe { stream.alloc::<f32>(batch * heads * seqlen) };
        let mut lse = lse.map_err(refused("alloc"))?;
        self.launch(stream, inputs, TensorMut::new(&mut o, request.q.shape), Some(&mut lse))?;
        Ok((o, lse))
    }

    /// The same into memory of the caller's: O, and where `lse` is given the log-sum-exp of each row,
    /// `[batch, heads, seqlen]`, contiguous.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn forward_into<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        self.is_here("o", o.data.stream())?;
        if let Some(lse) = &lse {
            self.is_here("lse", lse.stream())?;
        }
        self.launch(stream, self.inputs(stream, request)?, o, lse)
    }

    /// The inputs of a request, all of this context.
    fn inputs<'a, T: Element>(
        &self,
        stream: &'a Arc<CudaStream>,
        request: &Request<'a, T>,
    ) -> Result<Inputs<'a>, Error> {
        let Request { q, k, v, .. } = request;
        self.is_here("stream", stream)?;
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            self.is_here(name, tensor.data.stream())?;
        }
        Ok(request.on(stream))
    }

    fn is_here(&self, what: &'static str, stream: &CudaStream) -> Result<(), Error> {
        let (theirs, ours) = (stream.context(), &self.context);
        if theirs.cu_ctx() == ours.cu_ctx() {
            return Ok(());
        }
        let value = format_args!("of device {}'s context {:?}", theirs.ordinal(), theirs.cu_ctx());
        Err(Error::invalid(what, value, "it must be of the context that FlashAttention::new was given"))
    }

    /// Memory for O, once it is known that the request is valid.
    fn allocate<'a, T: Element>(
        &self,
        stream: &'a Arc<CudaStream>,
        request: &Request<'a, T>,
    ) -> Result<(CudaSlice<T>, Inputs<'a>), Error> {
        let inputs = self.inputs(stream, request)?;
        self.attention.plan(&inputs.forward)?;
        // SAFETY: the kernel writes every element, in the stream's order before anybody else reads one.
        let o = unsafe { stream.alloc::<T>(request.q.shape.iter().product()) };
        Ok((o.map_err(refused("alloc"))?, inputs))
    }

    fn launch<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        inputs: Inputs<'_>,
        o: TensorMut<'_, T>,
        mut lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        let (len, [batch, seqlen, heads, _]) = (o.data.len(), inputs.forward.q.shape);
        let (address, _o) = o.data.device_ptr_mut(stream);
        let mut forward = Forward { o: view::<T>(address, len, o.shape, o.strides), ..inputs.forward };
        let lse = lse.as_mut().map(|lse| (lse.len() as u64, lse.device_ptr_mut(stream)));
        forward.lse = lse
            .as_ref()
            .map(|(elements, (address, _))| LseView::contiguous(*address, *elements, [batch, heads, seqlen]));

        let plan = self.attention.plan_with(&forward, u64::MAX)?;
        let bytes = plan.workspace_bytes();
        let mut workspace = match bytes {
            0 => None,
            // SAFETY: its contents mean nothing before the launch.
            bytes => Some(unsafe { stream.alloc::<u8>(bytes as usize) }.map_err(refused("alloc"))?),
        };
        let memory = workspace.as_mut().map(|slice| slice.device_ptr_mut(stream));
        forward.workspace = memory.as_ref().map(|(address, _)| Workspace { address: *address, bytes });
        // SAFETY: the stream lives as long as this call needs it, and is of this context. The slices are
        // device memory of this context, as long as they say; planning has checked that the tensors lie
        // within. cudarc frees them in the order of streams that have waited for this one, and lends them to
        // other work in that order. The kernels stay until `drop` has waited for them.
        unsafe { self.attention.launch(&plan, &forward, &RawStream::from_raw(stream.cu_stream().cast())) }
    }
}

impl Drop for FlashAttention {
    fn drop(&mut self) {
        // Its kernels are about to be unloaded. Where waiting fails there is nothing left that runs, or a
        // capture, whose graph cudarc does not keep from its memory either.
        let _ = self.context.synchronize();
    }
}

/// `cudarc`'s error as one of this crate's.
fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |e| Error::driver(call, Some(e.0 as u32), e)
}
