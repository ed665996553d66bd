//! Converts candle's tensors to the parts of FerroFlash's requests.
use crate::errors::{invalid, unsupported};
use crate::starts::shape_and_strides;
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaStorageSlice as Data;
use candle::cuda_backend::cudarc::driver::CudaView;
use candle::{CudaStorage, DType, Layout, Result, Storage, StorageRef, Tensor};
use ferroflash::cudarc::{Integers, Slice, SliceMut, Tensor as Input};
use ferroflash::request::{Index, Memory, TensorView};

/// A tensor of an operation.
pub(crate) type Stored<'a> = (&'a CudaStorage, &'a Layout);

/// Returns the memory of a storage, for reading or for writing.
macro_rules! memory {
    ($memory:ident of $storage:ident) => {
        match $storage {
            Data::U8(data) => $memory::new(data),
            Data::U32(data) => $memory::new(data),
            Data::I32(data) => $memory::new(data),
            Data::I64(data) => $memory::new(data),
            Data::BF16(data) => $memory::new(data),
            Data::F16(data) => $memory::new(data),
            Data::F32(data) => $memory::new(data),
            _ => return Err(unsupported("a tensor of this dtype", "flash-attn takes f16 and bf16")),
        }
    };
}

/// Returns a tensor's memory from its first element on.
pub(crate) fn slice<'a>((storage, layout): Stored<'a>) -> Result<Slice<'a>> {
    let (elements, of) = (&storage.slice, storage.dtype());
    Ok(memory!(Slice of elements).behind(bytes(layout.start_offset(), of)))
}

/// Returns a tensor's memory from its first element on, for writing.
pub(crate) fn written<'a>(storage: &'a mut CudaStorage, layout: &Layout) -> Result<SliceMut<'a>> {
    let of = storage.dtype();
    let elements = &mut storage.slice;
    Ok(memory!(SliceMut of elements).behind(bytes(layout.start_offset(), of)))
}

/// Calls a generic function with the element type of queries of a dtype.
macro_rules! typed {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            ferroflash::DType::F16 => $function::<half::f16>($($argument),*),
            ferroflash::DType::Bf16 => $function::<half::bf16>($($argument),*),
            other => Err($crate::errors::unsupported(
                format_args!("queries of {}", other.name()),
                "flash-attn takes f16 and bf16",
            )),
        }
    };
}
pub(crate) use typed;

fn bytes(elements: usize, dtype: DType) -> u64 {
    (elements * dtype.size_in_bytes()) as u64
}

/// Returns the dtype of queries, keys or values. A tensor of u8 is an e4m3 cache.
pub(crate) fn number(what: &str, dtype: DType) -> Result<ferroflash::DType> {
    match dtype {
        DType::F16 => Ok(ferroflash::DType::F16),
        DType::BF16 => Ok(ferroflash::DType::Bf16),
        DType::F32 => Ok(ferroflash::DType::F32),
        DType::U8 => Ok(ferroflash::DType::E4m3),
        other => Err(no_such_type(what, other)),
    }
}

/// Returns strides as a request has them.
pub(crate) fn long<const N: usize>(strides: [usize; N]) -> [i64; N] {
    strides.map(|stride| stride as i64)
}

/// Converts a tensor `[batch, seqlen, heads, head_dim]`. A varlen tensor `[rows, heads, head_dim]` is one
/// batch.
pub(crate) fn input<'a>(name: &'static str, tensor: Stored<'a>, varlen: bool) -> Result<Input<'a>> {
    let [shape, strides] = shape_and_strides(name, tensor.1, varlen)?;
    let dtype = number(name, tensor.0.dtype())?;
    Ok(TensorView::new(slice(tensor)?, u64::MAX, dtype, shape, long(strides)))
}

/// A further tensor of an operation, locked against writes.
pub(crate) struct Read<'a> {
    storage: StorageRef<'a>,
    pub layout: &'a Layout,
    pub name: &'static str,
}

impl<'a> Read<'a> {
    pub fn of(name: &'static str, tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Read { storage, layout, name }
    }

    pub fn all(tensors: &[(&'static str, &'a Tensor)]) -> Vec<Self> {
        tensors.iter().map(|(name, tensor)| Read::of(name, tensor)).collect()
    }

    pub fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    pub fn stored(&self) -> Result<Stored<'_>> {
        match &*self.storage {
            Storage::Cuda(storage) => Ok((storage, self.layout)),
            other => Err(invalid(self.name, format_args!("{:?}", other.device()), "it must be on the GPU")),
        }
    }

    /// Returns the tensor's memory from its first element on.
    pub fn slice(&self) -> Result<Slice<'_>> {
        slice(self.stored()?)
    }

    /// Returns the tensor's numbers, f32, from its first element on.
    pub fn floats(&self) -> Result<CudaView<'_, f32>> {
        let (storage, layout) = self.stored()?;
        match &storage.slice {
            Data::F32(data) => Ok(data.slice(layout.start_offset()..)),
            _ => Err(invalid(self.name, format_args!("{:?}", self.dtype()), "its dtype must be F32")),
        }
    }

    /// Returns the memory of the tensor's elements, which must follow one another.
    pub fn contiguous(&self) -> Result<Slice<'_>> {
        if !self.layout.is_contiguous() {
            let value = format!("{:?} with strides {:?}", self.layout.dims(), self.layout.stride());
            return Err(invalid(self.name, value, "it must be contiguous: `tensor.contiguous()?`"));
        }
        Ok(self.slice()?.first(bytes(self.layout.shape().elem_count(), self.dtype())))
    }

    /// Returns the memory of a tensor with `rank` dimensions of one of these dtypes, up to its last element.
    /// The last dimension must be contiguous.
    pub fn data(&self, rank: usize, dtypes: &[DType]) -> Result<Slice<'_>> {
        if !dtypes.contains(&self.dtype()) {
            let expected = format_args!("its dtype must be one of {dtypes:?}");
            return Err(invalid(self.name, format_args!("{:?}", self.dtype()), expected));
        }
        let (dims, strides) = (self.layout.dims(), self.layout.stride());
        if dims.len() != rank || (strides[rank - 1] != 1 && dims[rank - 1] > 1) {
            let expected = format!("{rank} dimensions, the last of them contiguous");
            return Err(invalid(self.name, format_args!("{dims:?} with strides {strides:?}"), expected));
        }
        // The memory ends at the tensor's last element, so that its length is the number of sequences or
        // tokens.
        let reach = |(dim, stride): (&usize, &usize)| dim.saturating_sub(1) * stride;
        let end = dims.iter().zip(strides).map(reach).sum::<usize>() + 1;
        let elements = if dims.contains(&0) { 0 } else { end };
        Ok(self.slice()?.first(bytes(elements, self.dtype())))
    }

    /// Returns the tensor's integers, `u32` or `i32`.
    pub fn numbers(&self, rank: usize) -> Result<Integers<'_>> {
        let data = self.data(rank, &[DType::U32, DType::I32])?;
        Ok(Index::new(data, self.layout.shape().elem_count() as u64))
    }

    /// Returns one f32 per head.
    pub fn per_head(&self, heads: usize) -> Result<Slice<'_>> {
        if self.layout.dims() != [heads] {
            let expected = format_args!("it must be [{heads}], one for each query head");
            return Err(invalid(self.name, format_args!("{:?}", self.layout.dims()), expected));
        }
        self.data(1, &[DType::F32])
    }
}

/// Returns the error of a dtype that attention does not support.
pub(crate) fn no_such_type(what: &str, dtype: DType) -> candle::Error {
    unsupported(format_args!("{what} of {dtype:?}"), "flash-attn takes f16 and bf16")
}
