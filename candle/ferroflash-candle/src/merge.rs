//! Sinks where kernels have none: a merge with what belongs to no key.
use crate::errors::refused;
use candle::Result;
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream};
use ferroflash::cudarc::{Element, FlashAttention, Memory, State, Tensor as Input, TensorMut};
use std::sync::Arc;

/// The same O and log-sum-exp with a logit for each head that belongs to no key.
pub(crate) fn with_sinks<T: Element>(
    attention: &FlashAttention,
    stream: &Arc<CudaStream>,
    (o, lse): (CudaSlice<T>, CudaSlice<f32>),
    sinks: &impl Memory<f32>,
    shape: [usize; 4],
) -> Result<(CudaSlice<T>, Option<CudaSlice<f32>>)> {
    let zeros = |e: candle::cuda_backend::cudarc::driver::DriverError| candle::Error::Cuda(Box::new(e)).bt();
    let mut merged = stream.alloc_zeros::<T>(o.len()).map_err(zeros)?;
    let mut sums = stream.alloc_zeros::<f32>(lse.len()).map_err(zeros)?;
    let states = [State::new(Input::new(&o, shape), &lse)];
    let output = TensorMut::new(&mut merged, shape);
    attention.merge(stream, &states, Some(sinks), output, Some(&mut sums)).map_err(refused)?;
    Ok((merged, Some(sums)))
}
