//! Merges attention over two sets of keys into attention over all keys. A merge also adds attention sinks for
//! kernels without sinks.
use crate::errors::{invalid, refused};
use crate::gpu::here::Here;
use crate::gpu::inputs::{Read, Stored, input, number, typed};
use crate::gpu::run::{are_untracked, device, stored, tensor};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream};
use candle::{DType, Result, Tensor};
use ferroflash::cudarc::{Element, FlashAttention, Slice, State, Tensor as Input, TensorMut};
use ferroflash::request::Sinks;
use std::sync::Arc;

/// Adds attention sinks to O and LSE.
pub(crate) fn with_sinks<T: Element>(
    attention: &FlashAttention,
    stream: &Arc<CudaStream>,
    (o, lse): (CudaSlice<T>, CudaSlice<f32>),
    sinks: Sinks<Slice<'_>>,
    shape: [usize; 4],
) -> Result<(CudaSlice<T>, CudaSlice<f32>)> {
    merged(attention, stream, &[State::of(Input::of(&o, shape), Slice::new(&lse))], Some(sinks))
}

/// Merges states into new memory.
fn merged<T: Element, const N: usize>(
    attention: &FlashAttention,
    stream: &Arc<CudaStream>,
    states: &[State<'_>; N],
    sinks: Option<Sinks<Slice<'_>>>,
) -> Result<(CudaSlice<T>, CudaSlice<f32>)> {
    let shape @ [batch, rows, heads, _] = states[0].o.shape;
    let mut o = stream.alloc_zeros(shape.iter().product()).map_err(refused)?;
    let mut lse = stream.alloc_zeros(batch * rows * heads).map_err(refused)?;
    attention.merge(stream, states, sinks, TensorMut::of(&mut o, shape), Some(&mut lse)).map_err(refused)?;
    Ok((o, lse))
}

/// Merges two partial states of the same queries and different keys. Outputs are `(batch, sequence, heads,
/// head_dim)` with LSEs `(batch, heads, sequence)`, or varlen `(rows, heads, head_dim)` with `(heads, rows)`.
/// LSEs are contiguous.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
#[doc(alias = "merge_attn_states")]
pub fn merge(some: (&Tensor, &Tensor), others: (&Tensor, &Tensor)) -> Result<(Tensor, Tensor)> {
    let dims = some.0.dims();
    let expected = match *dims {
        [batch, rows, heads, _] => vec![batch, heads, rows],
        [rows, heads, _] => vec![heads, rows],
        _ => return Err(invalid("o", format_args!("{dims:?}"), "3 or 4 dimensions")),
    };
    for lse in [some.1, others.1] {
        if lse.dims() != expected || !lse.is_contiguous() {
            let expected = format_args!("it must be contiguous {expected:?}");
            return Err(invalid("lse", format_args!("{:?}", lse.dims()), expected));
        }
    }
    are_untracked(&[some.0, some.1, others.0, others.1])?;
    let o = [some.0, others.0].map(|o| Read::of("o", o));
    let o = [o[0].stored()?, o[1].stored()?];
    typed!(number("o", o[0].0.dtype())?, two(o, [some.1, others.1]))
}

fn two<T: Element + CudaDType>(states: [Stored<'_>; 2], lse: [&Tensor; 2]) -> Result<(Tensor, Tensor)> {
    let device = device(states[0]);
    let stream = device.cuda_stream();
    let varlen = states[0].1.dims().len() == 3;
    let reads = lse.map(|lse| Read::of("lse", lse));
    let state = [
        State::of(input("o", states[0], varlen)?, reads[0].data(lse[0].rank(), &[DType::F32])?),
        State::of(input("o", states[1], varlen)?, reads[1].data(lse[1].rank(), &[DType::F32])?),
    ];
    let (o, sums) = merged::<T, 2>(&Here::of(&stream)?.attention, &stream, &state, None)?;
    Ok((tensor(stored(o, device), states[0].1.shape()), tensor(stored(sums, device), lse[0].shape())))
}
