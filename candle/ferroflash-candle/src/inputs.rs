//! Converts candle's tensors to cudarc's views, and cudarc's views to FerroFlash's inputs.
use crate::errors::{invalid, unsupported};
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaView, CudaViewMut};
use candle::{CudaStorage, Layout, Result, Shape, Storage, StorageRef, Tensor};
use ferroflash::cudarc::{Element, Integers, Number, Tensor as Input, signed, signed_mut};
use half::{bf16, f16};

/// A number type of KV caches. Candle has no i8, so a tensor of u8 holds the bytes of an int8 cache.
pub(crate) trait CacheNumber: Number {
    /// The type of candle's tensor.
    type Stored: CudaDType;
    fn view<'a>(data: &CudaView<'a, Self::Stored>) -> CudaView<'a, Self>;
    fn view_mut<'a>(data: &'a mut CudaViewMut<'_, Self::Stored>) -> CudaViewMut<'a, Self>;
}

macro_rules! as_they_are {
    ($($number:ty),*) => { $(impl CacheNumber for $number {
        type Stored = Self;
        fn view<'a>(data: &CudaView<'a, Self>) -> CudaView<'a, Self> {
            data.slice(..)
        }
        fn view_mut<'a>(data: &'a mut CudaViewMut<'_, Self>) -> CudaViewMut<'a, Self> {
            data.slice_mut(..)
        }
    })* };
}
as_they_are!(f16, bf16, u8);

impl CacheNumber for i8 {
    type Stored = u8;
    fn view<'a>(data: &CudaView<'a, u8>) -> CudaView<'a, i8> {
        signed(data)
    }
    fn view_mut<'a>(data: &'a mut CudaViewMut<'_, u8>) -> CudaViewMut<'a, i8> {
        signed_mut(data)
    }
}

/// A tensor of an operation.
pub(crate) type Stored<'a> = (&'a CudaStorage, &'a Layout);

/// A further tensor of an operation, locked against writes.
pub(crate) struct Read<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
    name: &'static str,
}

impl<'a> Read<'a> {
    pub fn of(name: &'static str, tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Read { storage, layout, name }
    }

    pub fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    pub fn strides(&self) -> &'a [usize] {
        self.layout.stride()
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn dtype(&self) -> candle::DType {
        self.storage.dtype()
    }

    /// Whether the tensor's elements follow one another.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The first `elements` elements of the tensor's storage.
    pub fn first<T: CudaDType>(&self, elements: usize) -> Result<CudaView<'_, T>> {
        let all = self.all()?;
        let expected = format_args!("{elements} elements must lie within its storage");
        all.try_slice(..elements).ok_or_else(|| invalid(self.name, all.len(), expected))
    }

    /// Returns the tensor's elements, and the elements behind them in its storage.
    pub fn all<T: CudaDType>(&self) -> Result<CudaView<'_, T>> {
        data(self.stored()?)
    }

    /// Returns the tensor's f32 numbers. The tensor must be contiguous.
    pub fn contiguous(&self) -> Result<CudaView<'_, f32>> {
        if !self.is_contiguous() {
            let value = format!("{:?} with strides {:?}", self.layout.dims(), self.layout.stride());
            return Err(invalid(self.name, value, "a contiguous tensor"));
        }
        self.first(self.layout.shape().elem_count())
    }

    fn stored(&self) -> Result<Stored<'_>> {
        match &*self.storage {
            Storage::Cuda(storage) => Ok((storage, self.layout)),
            other => Err(invalid(self.name, format_args!("{:?}", other.device()), "it must be on the GPU")),
        }
    }

    /// Returns the tensor's elements. The tensor must have `rank` dimensions of `T`, and the last one must be
    /// contiguous.
    pub fn data<T: CudaDType>(&self, rank: usize) -> Result<CudaView<'_, T>> {
        let (dims, strides) = (self.layout.dims(), self.layout.stride());
        if dims.len() != rank || (strides[rank - 1] != 1 && dims[rank - 1] > 1) {
            let expected = format!("{rank} dimensions, the last of them contiguous");
            return Err(invalid(self.name, format_args!("{dims:?} with strides {strides:?}"), expected));
        }
        // The view ends at the tensor's last element, so that its length is the number of sequences or
        // tokens.
        let reach = |(dim, stride): (&usize, &usize)| dim.saturating_sub(1) * stride;
        let end = dims.iter().zip(strides).map(reach).sum::<usize>() + 1;
        self.first(if dims.contains(&0) { 0 } else { end })
    }

    /// Returns the tensor's integers, `u32` or `i32`.
    pub fn numbers(&self, rank: usize) -> Result<Numbers<'_>> {
        match self.storage.dtype() {
            candle::DType::U32 => self.data(rank).map(Numbers::Unsigned),
            candle::DType::I32 => self.data(rank).map(Numbers::Signed),
            other => Err(invalid(self.name, format_args!("{other:?}"), "its dtype must be u32 or i32")),
        }
    }

    /// Returns one f32 per head.
    pub fn per_head(&self, heads: usize) -> Result<CudaView<'_, f32>> {
        if self.layout.dims() != [heads] {
            let expected = format_args!("it must be [{heads}], one for each query head");
            return Err(invalid(self.name, format_args!("{:?}", self.layout.dims()), expected));
        }
        self.data(1)
    }

    /// Returns the number of elements from one row to the next, for two dimensions.
    pub fn row_stride(&self) -> usize {
        self.layout.stride()[0]
    }
}

/// Integers on the device.
pub(crate) enum Numbers<'a> {
    Signed(CudaView<'a, i32>),
    Unsigned(CudaView<'a, u32>),
}

impl Numbers<'_> {
    pub fn integers(&self) -> Integers<'_> {
        match self {
            Numbers::Signed(data) => data.into(),
            Numbers::Unsigned(data) => data.into(),
        }
    }
}

/// Returns a tensor's elements from its first element on.
pub(crate) fn data<'a, T: CudaDType>((storage, layout): Stored<'a>) -> Result<CudaView<'a, T>> {
    let all = storage.as_cuda_slice::<T>()?;
    all.try_slice(layout.start_offset()..)
        .ok_or_else(|| invalid("tensor", layout.start_offset(), "it must begin within its storage"))
}

/// Converts a tensor `[batch, seqlen, heads, head_dim]`. A varlen tensor `[rows, heads, head_dim]` becomes
/// one batch.
pub(crate) fn input<'a, T: Element>(
    name: &'static str,
    data: &'a CudaView<'_, T>,
    layout: &Layout,
    packed: bool,
) -> Result<Input<'a, T>> {
    let (shape, strides) = match (layout.dims(), layout.stride(), packed) {
        (&[b, s, h, d], &[sb, ss, sh, sd], false) => ([b, s, h, d], [sb, ss, sh, sd]),
        (&[s, h, d], &[ss, sh, sd], true) => ([1, s, h, d], [0, ss, sh, sd]),
        (dims, ..) => {
            let expected = match packed {
                false => "it must be [batch, seqlen, heads, head_dim]",
                true => "it must be [rows of all sequences, heads, head_dim]",
            };
            return Err(invalid(name, format_args!("{dims:?}"), expected));
        }
    };
    Ok(Input::new(data, shape).strides(strides.map(|stride| stride as i64)))
}

/// Returns the error of a dtype that attention does not support.
pub(crate) fn no_such_type(what: &str, dtype: candle::DType) -> candle::Error {
    unsupported(format_args!("{what} of {dtype:?}"), "flash-attn takes f16 and bf16")
}
