//! Attention on `cudarc`'s slices and streams, in safe Rust (feature `cudarc`). Functions have the names and the order of arguments of
//! candle-flash-attn, so that code that has slices rather than tensors moves without being rewritten.
//!
//! ```no_run
//! use ferroflash::cudarc::{FlashAttention, Tensor};
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
//! # Ok(())
//! # }
//! ```
use crate::{Attention, DType, Error, Forward, Mask, RawDriver, RawStream, TensorView, Workspace};
use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DriverError,
};
use std::sync::Arc;

/// An element type that there are kernels for: `half::f16` and `half::bf16`.
pub trait Element: DeviceRepr {
    /// Its name in this crate.
    const DTYPE: DType;
}

impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for half::bf16 {
    const DTYPE: DType = DType::Bf16;
}

/// Memory that an input may lie in: `CudaSlice`, `CudaView`, `CudaViewMut`. Only cudarc's own types, whose addresses and lengths are true.
pub trait Memory<T>: DevicePtr<T> + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! memory {
    ($($name:ident $(<$life:lifetime>)?),*) => {
        $(impl<T> sealed::Sealed for $name<$($life,)? T> {}
        impl<T> Memory<T> for $name<$($life,)? T> {})*
    };
}
memory!(CudaSlice, CudaView<'_>, CudaViewMut<'_>);

/// An input in a slice or a view of one.
#[derive(Clone, Copy)]
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

    /// The same with other strides: elements from one batch, row, head and column to the next, as in [`TensorView::strides`].
    pub fn strides(self, strides: [i64; 4]) -> Self {
        Tensor { strides: Some(strides), ..self }
    }

    fn view(&self, address: u64) -> TensorView {
        let contiguous = TensorView::bshd(address, self.data.len() as u64, T::DTYPE, self.shape);
        TensorView { strides: self.strides.unwrap_or(contiguous.strides), ..contiguous }
    }
}

/// Attention on one of `cudarc`'s contexts. Kernels are loaded at their first use, and kept.
pub struct FlashAttention {
    attention: Attention<RawDriver>,
    // Dropped after the kernels that were loaded in it.
    context: Arc<CudaContext>,
}

impl FlashAttention {
    /// For slices and streams of `context`.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver refuses.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        context.bind_to_thread().map_err(refused("bind_to_thread"))?;
        Ok(FlashAttention { attention: Attention::new(RawDriver::current()?), context: Arc::clone(context) })
    }

    /// What plans and launches: for outputs of one's own, log-sum-exps, other masks, CUDA graphs.
    pub fn attention(&self) -> &Attention<RawDriver> {
        &self.attention
    }

    /// `o = softmax(softmax_scale * q kᵀ) v` on `stream`, `o` being contiguous and of `q`'s shape. `causal` is aligned bottom-right.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] name what is wrong, [`Error::Driver`] what the driver refuses.
    pub fn flash_attn<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        q: Tensor<'_, T>,
        k: Tensor<'_, T>,
        v: Tensor<'_, T>,
        softmax_scale: f32,
        causal: bool,
    ) -> Result<CudaSlice<T>, Error> {
        self.forward(stream, [q, k, v], softmax_scale, if causal { Mask::Causal } else { Mask::Full })
    }

    /// The same, each query seeing keys from `window_size_left` before to `window_size_right` behind its own position, both inclusive; `None`
    /// is unbounded.
    ///
    /// # Errors
    /// Those of [`FlashAttention::flash_attn`].
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
        self.forward(stream, [q, k, v], softmax_scale, mask)
    }

    fn forward<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        [q, k, v]: [Tensor<'_, T>; 3],
        softmax_scale: f32,
        mask: Mask,
    ) -> Result<CudaSlice<T>, Error> {
        let contexts = [("stream", stream), ("q", q.data.stream()), ("k", k.data.stream()), ("v", v.data.stream())];
        if let Some((what, other)) = contexts.into_iter().find(|(_, s)| s.context().cu_ctx() != self.context.cu_ctx()) {
            let value =
                format_args!("of device {}'s context {:?}", other.context().ordinal(), other.context().cu_ctx());
            return Err(Error::invalid(what, value, "it must be of the context that FlashAttention::new was given"));
        }
        let elements = q.shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
        let elements =
            elements.ok_or_else(|| Error::invalid("q.shape", format!("{:?}", q.shape), "it is too large"))?;
        // SAFETY: the kernel writes every element, in the stream's order before anybody else reads one. An empty output is refused below.
        let mut o = unsafe { stream.alloc::<T>(elements.max(1)) }.map_err(refused("alloc"))?;

        // The guards record, when they are dropped, that this stream has used the memory: after the launch.
        let ((q_at, _q), (k_at, _k), (v_at, _v)) =
            (q.data.device_ptr(stream), k.data.device_ptr(stream), v.data.device_ptr(stream));
        let (o_at, output) = o.device_ptr_mut(stream);
        let view = TensorView::bshd(o_at, elements as u64, T::DTYPE, q.shape);
        let forward = Forward::new(q.view(q_at), k.view(k_at), v.view(v_at), view).mask(mask).scale(softmax_scale);
        let bytes = self.attention.workspace_bytes(&forward)?;
        let mut workspace = match bytes {
            0 => None,
            // SAFETY: its contents mean nothing before the launch.
            bytes => Some(unsafe { stream.alloc::<u8>(bytes as usize) }.map_err(refused("alloc"))?),
        };
        let memory = workspace.as_mut().map(|slice| slice.device_ptr_mut(stream));
        let address = memory.as_ref().map(|(address, _)| *address);
        let forward = Forward { workspace: address.map(|address| Workspace { address, bytes }), ..forward };
        let plan = self.attention.plan(&forward)?;
        // SAFETY: the slices are device memory of this context, as long as they say; planning has checked that the tensors lie within. cudarc
        // frees them in the order of streams that have waited for this one, and lends them to other work in that order.
        unsafe { self.attention.launch(&plan, &forward, &RawStream::from_raw(stream.cu_stream().cast()))? };
        drop(memory);
        drop(output);
        Ok(o)
    }
}

/// `cudarc`'s error as one of this crate's.
fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |e| Error::Driver { call, code: Some(e.0 as u32), reason: e.to_string() }
}
