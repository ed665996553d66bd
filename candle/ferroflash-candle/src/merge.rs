//! Merges attention over two sets of keys into attention over all keys. A merge also adds attention sinks for
//! kernels without sinks.
use crate::attend::Attend;
use crate::errors::{invalid, refused, unsupported};
use crate::extras::Reads;
use crate::here::{Here, lock};
use crate::inputs::{Read, Stored, input, no_such_type};
use crate::run::{Outputs, are_untracked, both, device, run, stored};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream};
use candle::{CudaDevice, DType, Result, Shape, Tensor};
use ferroflash::Error;
use ferroflash::cudarc::{Element, FlashAttention, Inputs, Slice, State, Tensor as Input, TensorMut};
use ferroflash::request::Sinks;
use half::{bf16, f16};
use std::sync::Arc;

/// O and LSE.
type Results<T> = (CudaSlice<T>, Option<CudaSlice<f32>>);

/// Computes attention of `inputs` with the options of `attend`, on at most `max_k` keys per sequence.
pub(crate) fn compute(
    device: &CudaDevice,
    inputs: Inputs<'_>,
    attend: &Attend,
    max_k: usize,
    with_lse: bool,
    packed: bool,
) -> Result<Outputs> {
    let extras = Reads::of(attend);
    let tables = extras.tables()?;
    let inputs = inputs.shorter().mask(attend.mask(max_k)).scale(attend.softmax_scale).softcap(attend.cap());
    let inputs = extras.give(inputs, &tables)?;
    let sinks = extras.sinks(inputs.q.shape[2])?;
    match inputs.q.dtype {
        ferroflash::DType::F16 => outputs::<f16>(device, &inputs, sinks, with_lse, packed),
        ferroflash::DType::Bf16 => outputs::<bf16>(device, &inputs, sinks, with_lse, packed),
        other => {
            Err(unsupported(format_args!("queries of {}", other.name()), "flash-attn takes f16 and bf16"))
        }
    }
}

fn outputs<T: Element + CudaDType>(
    device: &CudaDevice,
    inputs: &Inputs<'_>,
    sinks: Option<Sinks<Slice<'_>>>,
    with_lse: bool,
    packed: bool,
) -> Result<Outputs> {
    let stream = device.cuda_stream();
    let (o, lse) = with_sinks_if::<T>(&stream, inputs, sinks, with_lse)?;
    let [batch, rows, heads, columns] = inputs.o.shape;
    let (shape, lse_shape): (Shape, Shape) = match packed {
        true => ((rows, heads, columns).into(), (heads, rows).into()),
        false => ((batch, rows, heads, columns).into(), (batch, heads, rows).into()),
    };
    let lse = lse.filter(|_| with_lse).map(|lse| (stored(lse, device), lse_shape));
    Ok(Outputs { o: stored(o, device), shape, lse })
}

/// Computes attention, with sinks if given. A kernel that supports sinks adds them; otherwise a merge adds
/// them.
fn with_sinks_if<T: Element>(
    stream: &Arc<CudaStream>,
    inputs: &Inputs<'_>,
    sinks: Option<Sinks<Slice<'_>>>,
    with_lse: bool,
) -> Result<Results<T>> {
    let here = Here::of(stream)?;
    let (attention, scratch) = (&here.attention, here.scratch(stream));
    let mut scratch = lock(&scratch);
    let mut run = |inputs: &Inputs<'_>, with_lse: bool| {
        if with_lse {
            let (o, lse) = attention.attend_with_lse::<T>(stream, inputs, &mut scratch)?;
            Ok((o, Some(lse)))
        } else {
            Ok((attention.attend(stream, inputs, &mut scratch)?, None))
        }
    };
    let Some(sinks) = sinks else { return run(inputs, with_lse).map_err(refused) };
    match run(&inputs.shorter().sinks(sinks), with_lse) {
        Err(Error::Unsupported { .. }) => match run(inputs, true).map_err(refused)? {
            (o, Some(lse)) => with_sinks(attention, stream, (o, lse), sinks, inputs.o.shape),
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
    sinks: Sinks<Slice<'_>>,
    shape: [usize; 4],
) -> Result<Results<T>> {
    let mut merged = zeros::<T>(stream, o.len())?;
    let mut sums = zeros::<f32>(stream, lse.len())?;
    let states = [State::of(Input::of(&o, shape), Slice::new(&lse))];
    let output = TensorMut::of(&mut merged, shape);
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
    are_untracked(&[others.1])?;
    both(run([some.0, others.0, some.1], None, |[a, b, _]| {
        let lse = [some.1, others.1];
        match a.0.dtype() {
            DType::F16 => two::<f16>([a, b], lse),
            DType::BF16 => two::<bf16>([a, b], lse),
            other => Err(no_such_type("outputs", other)),
        }
    })?)
}

fn two<T: Element + CudaDType>(states: [Stored<'_>; 2], lse: [&Tensor; 2]) -> Result<Outputs> {
    let device = device(states[0]);
    let stream = device.cuda_stream();
    let packed = states[0].1.dims().len() == 3;
    let reads = lse.map(|lse| Read::of("lse", lse));
    let state = [
        State::of(input("o", states[0], packed)?, reads[0].data(lse[0].rank(), &[DType::F32])?),
        State::of(input("o", states[1], packed)?, reads[1].data(lse[1].rank(), &[DType::F32])?),
    ];
    let shape = state[0].o.shape;
    let (mut o, mut sums) =
        (zeros::<T>(&stream, shape.iter().product())?, zeros::<f32>(&stream, lse[0].elem_count())?);
    let output = TensorMut::of(&mut o, shape);
    Here::of(&stream)?.attention.merge(&stream, &state, None, output, Some(&mut sums)).map_err(refused)?;
    let lse = Some((stored(sums, device), lse[0].shape().clone()));
    Ok(Outputs { o: stored(o, device), shape: states[0].1.shape().clone(), lse })
}

fn zeros<T: ferroflash::cudarc::Number>(stream: &Arc<CudaStream>, elements: usize) -> Result<CudaSlice<T>> {
    stream.alloc_zeros(elements).map_err(|e| candle::Error::Cuda(Box::new(e)).bt())
}
