//! Attention on a GPU, on tensors or on a KV cache.
use crate::attend::Attend;
use crate::errors::{invalid, refused};
use crate::gpu::extras::Reads;
use crate::gpu::here::{Here, lock};
use crate::gpu::inputs::{Read, Stored, input, typed};
use crate::gpu::merge::with_sinks;
use crate::gpu::run::{Outputs, device, stored, tensor};
use crate::starts::Starts;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream};
use candle::{CudaDevice, Result, Shape};
use ferroflash::Error;
use ferroflash::cudarc::{Element, Inputs, RowSlices, Slice};
use ferroflash::request::{Queries, RowOutputs, Sinks, VarlenKeys, VarlenQueries};
use std::sync::Arc;

/// Computes attention on tensors.
pub(crate) fn forward(
    inputs: [Stored<'_>; 3],
    attend: &Attend,
    starts: Option<&Starts>,
    wanted: RowOutputs<bool>,
) -> Result<Outputs> {
    let device = device(inputs[0]);
    with_inputs(inputs, starts, |inputs, max_k| compute(device, inputs, attend, max_k, wanted))
}

/// Calls a function with the inputs of tensors, and with the maximum number of keys of a sequence.
pub(crate) fn with_inputs<T>(
    [q, k, v]: [Stored<'_>; 3],
    starts: Option<&Starts>,
    run: impl FnOnce(Inputs<'_>, usize) -> Result<T>,
) -> Result<T> {
    let varlen = starts.is_some();
    let (q, k, v) = (input("q", q, varlen)?, input("k", k, varlen)?, input("v", v, varlen)?);
    let Some(Starts { q: of_q, k: of_k, max_q, max_k }) = starts else {
        return run(Inputs::of(q, k, v), k.shape[1]);
    };
    if of_q.shape() != of_k.shape() {
        let expected = format_args!("the shape of seqlens_q, {:?}", of_q.shape());
        return Err(invalid("seqlens_k", format_args!("{:?}", of_k.shape()), expected));
    }
    let (of_q, of_k) = (Read::of("seqlens_q", of_q), Read::of("seqlens_k", of_k));
    let queries = VarlenQueries::of_all(of_q.numbers(1)?, *max_q);
    run(Inputs::of_varlen(q, k, v, queries, VarlenKeys::new(of_k.numbers(1)?, *max_k)), *max_k)
}

/// Computes attention of `inputs` with the options of `attend`, on at most `max_k` keys per sequence.
pub(crate) fn compute(
    device: &CudaDevice,
    inputs: Inputs<'_>,
    attend: &Attend,
    max_k: usize,
    wanted: RowOutputs<bool>,
) -> Result<Outputs> {
    let extras = Reads::of(attend);
    let tables = extras.tables()?;
    let inputs = extras.give(inputs.shorter(), max_k, &tables)?;
    let sinks = extras.sinks(inputs.q.shape[2])?;
    typed!(inputs.q.dtype, outputs(device, &inputs, sinks, wanted))
}

fn outputs<T: Element + CudaDType>(
    device: &CudaDevice,
    inputs: &Inputs<'_>,
    sinks: Option<Sinks<Slice<'_>>>,
    wanted: RowOutputs<bool>,
) -> Result<Outputs> {
    let (o, slices) = with_sinks_if::<T>(&device.cuda_stream(), inputs, sinks, wanted)?;
    let [batch, rows, heads, columns] = inputs.o.shape;
    let (shape, of_rows): (Shape, Shape) = match inputs.queries {
        Queries::Varlen(_) => ((rows, heads, columns).into(), (heads, rows).into()),
        _ => ((batch, rows, heads, columns).into(), (batch, heads, rows).into()),
    };
    let rows = slices.zip(wanted).map(|_, (slice, wanted)| {
        slice.filter(|_| wanted).map(|slice| tensor(stored(slice, device), of_rows.clone()))
    });
    Ok(Outputs { o: stored(o, device), shape, rows })
}

/// Computes attention, with sinks if given. A kernel that supports sinks adds them; otherwise a merge adds
/// them.
fn with_sinks_if<T: Element>(
    stream: &Arc<CudaStream>,
    inputs: &Inputs<'_>,
    sinks: Option<Sinks<Slice<'_>>>,
    wanted: RowOutputs<bool>,
) -> Result<(CudaSlice<T>, RowSlices)> {
    let here = Here::of(stream)?;
    let (attention, scratch) = (&here.attention, here.scratch(stream));
    let mut scratch = lock(&scratch);
    let mut run = |inputs: &Inputs<'_>, wanted| attention.attend_with(stream, inputs, wanted, &mut scratch);
    let Some(sinks) = sinks else { return run(inputs, wanted).map_err(refused) };
    match run(&inputs.shorter().sinks(sinks), wanted) {
        Err(Error::Unsupported { .. }) => {
            let (o, mut rows) = run(inputs, RowOutputs { lse: true, ..wanted }).map_err(refused)?;
            let Some(lse) = rows.lse.take() else { return Ok((o, rows)) };
            let (o, lse) = with_sinks(attention, stream, (o, lse), sinks, inputs.o.shape)?;
            Ok((o, RowOutputs { lse: Some(lse), ..rows }))
        }
        outcome => outcome.map_err(refused),
    }
}
