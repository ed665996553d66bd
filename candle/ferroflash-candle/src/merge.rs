//! Merges attention over two sets of keys into attention over all keys. A merge also adds attention sinks for
//! kernels without sinks.
use crate::attend::{Outputs, both, device, run, stored};
use crate::errors::{invalid, refused};
use crate::here::{Here, lock};
use crate::inputs::{Read, Stored, data, input, no_such_type};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, CudaView};
use candle::{DType, Result, Tensor};
use ferroflash::Error;
use ferroflash::cudarc::{
    Element, FlashAttention, Inputs, Memory, Number, State, Tensor as Input, TensorMut,
};
use half::{bf16, f16};
use std::sync::Arc;

/// Computes attention, with sinks `[heads]` if given. A kernel that supports sinks adds them; otherwise a
/// merge adds them.
pub(crate) fn compute<T: Element, C: Number>(
    here: &Here,
    stream: &Arc<CudaStream>,
    inputs: &Inputs<'_, T, C>,
    sinks: Option<&CudaView<'_, f32>>,
    with_lse: bool,
    shape: [usize; 4],
) -> Result<(CudaSlice<T>, Option<CudaSlice<f32>>)> {
    let (attention, scratch) = (&here.attention, here.scratch(stream));
    let mut scratch = lock(&scratch);
    let mut run = |inputs: &Inputs<'_, T, C>, with_lse: bool| {
        if with_lse {
            let (o, lse) = attention.attend_with_lse(stream, inputs, &mut scratch)?;
            Ok((o, Some(lse)))
        } else {
            Ok((attention.attend(stream, inputs, &mut scratch)?, None))
        }
    };
    let Some(sinks) = sinks else { return run(inputs, with_lse).map_err(refused) };
    match run(&inputs.sinks(sinks), with_lse) {
        Err(Error::Unsupported { .. }) => match run(inputs, true).map_err(refused)? {
            (o, Some(lse)) => with_sinks(attention, stream, (o, lse), sinks, shape),
            outputs => Ok(outputs),
        },
        outcome => outcome.map_err(refused),
    }
}

/// Adds attention sinks to O and LSE.
fn with_sinks<T: Element>(
    attention: &FlashAttention,
    stream: &Arc<CudaStream>,
    (o, lse): (CudaSlice<T>, CudaSlice<f32>),
    sinks: &impl Memory<f32>,
    shape: [usize; 4],
) -> Result<(CudaSlice<T>, Option<CudaSlice<f32>>)> {
    let mut merged = zeros::<T>(stream, o.len())?;
    let mut sums = zeros::<f32>(stream, lse.len())?;
    let states = [State::new(Input::new(&o, shape), &lse)];
    let output = TensorMut::new(&mut merged, shape);
    attention.merge(stream, &states, Some(sinks), output, Some(&mut sums)).map_err(refused)?;
    Ok((merged, Some(sums)))
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
    both(run([some.0, others.0, some.1], |[a, b, _]| {
        let lse = [some.1, others.1];
        match a.0.dtype() {
            DType::F16 => two::<f16>([a, b], lse),
            DType::BF16 => two::<bf16>([a, b], lse),
            other => Err(no_such_type("outputs", other)),
        }
    })?)
}

fn two<T: Element + CudaDType>([a, b]: [Stored<'_>; 2], lse: [&Tensor; 2]) -> Result<Outputs> {
    let device = device(a);
    let stream = device.cuda_stream();
    let here = Here::of(&stream)?;
    let (dims, packed) = (a.1.dims(), a.1.dims().len() == 3);
    let (a_data, b_data) = (data::<T>(a)?, data::<T>(b)?);
    let [a_lse, b_lse] = lse.map(|lse| Read::of("lse", lse));
    let (a_lse, b_lse) = (a_lse.data::<f32>(lse[0].rank())?, b_lse.data::<f32>(lse[1].rank())?);
    let states = [
        State::new(input("o", &a_data, a.1, packed)?, &a_lse),
        State::new(input("o", &b_data, b.1, packed)?, &b_lse),
    ];
    let (elements, values) = (dims.iter().product(), lse[0].elem_count());
    let (mut o, mut sums) = (zeros::<T>(&stream, elements)?, zeros::<f32>(&stream, values)?);
    let shape = if packed { [1, dims[0], dims[1], dims[2]] } else { [dims[0], dims[1], dims[2], dims[3]] };
    let output = TensorMut::new(&mut o, shape);
    here.attention.merge(&stream, &states, None, output, Some(&mut sums)).map_err(refused)?;
    let lse = Some((stored(sums, device), lse[0].shape().clone()));
    Ok(Outputs { o: stored(o, device), shape: a.1.shape().clone(), lse })
}

fn zeros<T: ferroflash::cudarc::Number>(stream: &Arc<CudaStream>, elements: usize) -> Result<CudaSlice<T>> {
    stream.alloc_zeros(elements).map_err(|e| candle::Error::Cuda(Box::new(e)).bt())
}
