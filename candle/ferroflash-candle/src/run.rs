//! Operations without a gradient, and the results of operations.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::here::lock;
use crate::inputs::Stored;
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaSlice;
use candle::{CpuStorage, CudaDevice, CudaStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor};
use std::sync::Mutex;

/// The results of an operation.
pub(crate) struct Outputs {
    pub o: CudaStorage,
    pub shape: Shape,
    pub lse: Option<(CudaStorage, Shape)>,
}

/// Converts filled memory to candle's storage.
pub(crate) fn stored<T: CudaDType>(slice: CudaSlice<T>, device: &CudaDevice) -> CudaStorage {
    CudaStorage::wrap_cuda_slice(slice, device.clone())
}

/// An operation on three tensors. Computes O, and stores a second result, the LSE.
pub(crate) struct Operation<F> {
    name: &'static str,
    run: F,
    lse: Mutex<Option<(CudaStorage, Shape)>>,
}

impl<F: Fn([Stored<'_>; 3]) -> Result<Outputs>> Operation<F> {
    pub fn new(name: &'static str, run: F) -> Self {
        Operation { name, run, lse: Mutex::default() }
    }
}

impl<F: Fn([Stored<'_>; 3]) -> Result<Outputs>> CustomOp3 for Operation<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let outputs = (self.run)([(q, q_l), (k, k_l), (v, v_l)])?;
        *lock(&self.lse) = outputs.lse;
        Ok((outputs.o, outputs.shape))
    }
}

/// Runs an operation without gradient. Returns O, and the LSE if the operation computed it. `attend` are the
/// operation's parameters, if it has any.
pub(crate) fn run(
    [q, k, v]: [&Tensor; 3],
    attend: Option<&Attend>,
    operation: impl Fn([Stored<'_>; 3]) -> Result<Outputs>,
) -> Result<(Tensor, Option<Tensor>)> {
    are_untracked(&[q, k, v])?;
    attend.map_or(Ok(()), Attend::is_untracked)?;
    let operation = Operation::new("flash-attn-with-lse", operation);
    let o = q.apply_op3_no_bwd(k, v, &operation)?;
    let lse = lock(&operation.lse).take();
    let none = candle::op::BackpropOp::none;
    Ok((o, lse.map(|(lse, shape)| Tensor::from_storage(Storage::Cuda(lse), shape, none(), false))))
}

/// Checks that no tensor of an operation without gradient wants one.
pub(crate) fn are_untracked(tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().any(|tensor| tensor.track_op()) {
        true => Err(candle::Error::BackwardNotSupported { op: "flash-attn-with-lse" }),
        false => Ok(()),
    }
}

/// Returns O and the LSE of a run that computed both.
pub(crate) fn both((o, lse): (Tensor, Option<Tensor>)) -> Result<(Tensor, Tensor)> {
    lse.map(|lse| (o, lse)).ok_or_else(|| invalid("lse", "none", "the LSE, because the caller asked for it"))
}

/// Returns the device of an operation's tensor.
pub(crate) fn device((storage, _): Stored<'_>) -> &CudaDevice {
    storage.device()
}
