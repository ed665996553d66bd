//! What is asked of a row of scores, whatever the keys lie in; and operations with two results.
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaSlice;
use candle::{CpuStorage, CudaDevice, CudaStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor};
use ferroflash::request::Mask;
use std::sync::Mutex;

use crate::errors::invalid;
use crate::here::lock;
use crate::inputs::Stored;

/// What becomes of scores, beyond the names that candle-flash-attn has for it: for the functions that give
/// the log-sum-exp, and for caches.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Attend {
    /// Factor of the scores, above 0.
    pub softmax_scale: f32,
    /// Keys before a query's position that it sees; `None` is all.
    pub window_size_left: Option<usize>,
    /// Keys behind a query's position that it sees; `None` is all.
    pub window_size_right: Option<usize>,
    /// Scores become `softcap * tanh(score / softcap)`; 0, what is below and `None` leave them alone.
    pub softcap: Option<f32>,
    /// f32 `[heads]`: scores fall with the distance.
    pub alibi_slopes: Option<Tensor>,
    /// f32 `[heads]`: a logit that belongs to no key.
    pub sinks: Option<Tensor>,
}

impl Attend {
    /// To every key.
    pub fn full(softmax_scale: f32) -> Self {
        let (window_size_left, window_size_right) = (None, None);
        let (softcap, alibi_slopes, sinks) = (None, None, None);
        Attend { softmax_scale, window_size_left, window_size_right, softcap, alibi_slopes, sinks }
    }

    /// To keys up to the query's own position, the last query's being the last key's.
    pub fn causal(softmax_scale: f32) -> Self {
        Attend::full(softmax_scale).window(None, Some(0))
    }

    /// To keys from `left` before to `right` behind the query's own position.
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Attend { window_size_left: left, window_size_right: right, ..self }
    }

    /// With capped scores.
    pub fn softcap(self, softcap: f32) -> Self {
        Attend { softcap: Some(softcap), ..self }
    }

    /// With ALiBi.
    pub fn alibi_slopes(self, slopes: &Tensor) -> Self {
        Attend { alibi_slopes: Some(slopes.clone()), ..self }
    }

    /// With sinks.
    pub fn sinks(self, sinks: &Tensor) -> Self {
        Attend { sinks: Some(sinks.clone()), ..self }
    }

    /// For at most so many keys. candle-flash-attn's rule: a window that reaches past all keys is none.
    pub(crate) fn mask(&self, seqlen_k: usize) -> Mask {
        let side = |keys: Option<usize>| {
            keys.filter(|keys| *keys <= seqlen_k).and_then(|keys| u32::try_from(keys).ok())
        };
        match (side(self.window_size_left), side(self.window_size_right)) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        }
    }

    /// 0 is none. candle-flash-attn's rule: so is what is below.
    pub(crate) fn cap(&self) -> f32 {
        self.softcap.map_or(0.0, |cap| if cap <= 0.0 { 0.0 } else { cap })
    }
}

/// What an operation has made.
pub(crate) struct Outputs {
    pub o: CudaStorage,
    pub shape: Shape,
    pub lse: Option<(CudaStorage, Shape)>,
}

/// Memory that was filled, as candle's.
pub(crate) fn stored<T: CudaDType>(slice: CudaSlice<T>, device: &CudaDevice) -> CudaStorage {
    CudaStorage::wrap_cuda_slice(slice, device.clone())
}

/// An operation of three tensors whose second result waits in it.
struct WithLse<F> {
    run: F,
    lse: Mutex<Option<(CudaStorage, Shape)>>,
}

impl<F: Fn([Stored<'_>; 3]) -> Result<Outputs>> CustomOp3 for WithLse<F> {
    fn name(&self) -> &'static str {
        "flash-attn-with-lse"
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

/// Runs an operation that has no gradient, and gives O and, where it has made one, the log-sum-exp.
pub(crate) fn run(
    [q, k, v]: [&Tensor; 3],
    operation: impl Fn([Stored<'_>; 3]) -> Result<Outputs>,
) -> Result<(Tensor, Option<Tensor>)> {
    if [q, k, v].into_iter().any(Tensor::track_op) {
        return Err(candle::Error::BackwardNotSupported { op: "flash-attn-with-lse" });
    }
    let operation = WithLse { run: operation, lse: Mutex::default() };
    let o = q.apply_op3_no_bwd(k, v, &operation)?;
    let lse = lock(&operation.lse).take();
    let none = candle::op::BackpropOp::none;
    Ok((o, lse.map(|(lse, shape)| Tensor::from_storage(Storage::Cuda(lse), shape, none(), false))))
}

/// What a run that was asked for both has made.
pub(crate) fn both((o, lse): (Tensor, Option<Tensor>)) -> Result<(Tensor, Tensor)> {
    lse.map(|lse| (o, lse)).ok_or_else(|| invalid("lse", "none", "it was asked for"))
}

/// The device of a tensor inside of an operation.
pub(crate) fn device((storage, _): Stored<'_>) -> &CudaDevice {
    storage.device()
}
