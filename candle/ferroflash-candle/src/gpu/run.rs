//! Operations without a gradient, and the results of operations.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::gpu::inputs::{Read, Stored};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaSlice;
use candle::op::BackpropOp;
use candle::{CudaDevice, CudaStorage, Result, Shape, Storage, Tensor};
use ferroflash::request::RowOutputs;

/// O, and the wanted outputs of rows.
pub(crate) type Results = (Tensor, RowOutputs<Option<Tensor>>);

/// The results of an operation.
pub(crate) struct Outputs {
    pub o: CudaStorage,
    pub shape: Shape,
    pub rows: RowOutputs<Option<Tensor>>,
}

/// Converts filled memory to candle's storage.
pub(crate) fn stored<T: CudaDType>(slice: CudaSlice<T>, device: &CudaDevice) -> CudaStorage {
    CudaStorage::wrap_cuda_slice(slice, device.clone())
}

/// Returns a tensor without a history.
pub(crate) fn tensor(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}

/// Runs an operation without gradient on queries, keys and values.
pub(crate) fn run(
    tensors: [&Tensor; 3],
    attend: &Attend,
    operation: impl FnOnce([Stored<'_>; 3]) -> Result<Outputs>,
) -> Result<Results> {
    are_untracked(&tensors)?;
    attend.is_untracked()?;
    let [q, k, v] = tensors;
    let [q, k, v] = [Read::of("q", q), Read::of("k", k), Read::of("v", v)];
    let Outputs { o, shape, rows } = operation([q.stored()?, k.stored()?, v.stored()?])?;
    Ok((tensor(o, shape), rows))
}

/// Checks that no tensor of an operation without gradient wants one.
pub(crate) fn are_untracked(tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().any(|tensor| tensor.track_op()) {
        true => Err(candle::Error::BackwardNotSupported { op: "flash-attn-with-lse" }),
        false => Ok(()),
    }
}

/// Returns O and the LSE of a run that computed both.
pub(crate) fn both((o, rows): Results) -> Result<(Tensor, Tensor)> {
    let lse = rows.lse.map(|lse| (o, lse));
    lse.ok_or_else(|| invalid("lse", "none", "the LSE, because the caller asked for it"))
}

/// Returns the device of an operation's tensor.
pub(crate) fn device((storage, _): Stored<'_>) -> &CudaDevice {
    storage.device()
}
