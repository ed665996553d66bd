//! Gradients of attention on a GPU.
use crate::attend::Attend;
use crate::errors::{refused, unsupported};
use crate::gpu::extras::Reads;
use crate::gpu::forward::{forward, with_inputs};
use crate::gpu::here::{Here, lock};
use crate::gpu::inputs::{Read, Stored, input, typed};
use crate::gpu::run::{device, stored, tensor};
use crate::starts::Starts;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaView;
use candle::{Result, Tensor};
use ferroflash::cudarc::{Element, Inputs, Tensor as Input};
use ferroflash::request::RowOutputs;

/// Computes the gradients of Q, K and V from the results of the forward. Computes the LSE again if the
/// forward has kept none.
pub(crate) fn gradients(
    attend: &Attend,
    starts: Option<&Starts>,
    inputs: [&Tensor; 3],
    (o, lse): (&Tensor, Option<&Tensor>),
    d_o: &Tensor,
) -> Result<[Option<Tensor>; 3]> {
    if !cfg!(feature = "training") {
        let reason =
            "this build carries no backward kernels; enable the feature `training` of ferroflash-candle";
        return Err(unsupported("backward", reason));
    }
    let d_o = d_o.contiguous()?;
    let [q, k, v] = [("q", inputs[0]), ("k", inputs[1]), ("v", inputs[2])].map(|(name, x)| Read::of(name, x));
    let stored = [q.stored()?, k.stored()?, v.stored()?];
    let lse = match lse {
        Some(lse) => lse.clone(),
        None => {
            let lse = forward(stored, attend, starts, RowOutputs::LSE)?.rows.lse;
            lse.ok_or_else(|| unsupported("backward", "the forward wrote no LSE"))?
        }
    };
    let [o, lse, d_o] = [("o", o), ("lse", &lse), ("d_o", &d_o)].map(|(name, x)| Read::of(name, x));
    let varlen = starts.is_some();
    let results = (input("o", o.stored()?, varlen)?, lse.floats()?);
    let d_o = input("d_o", d_o.stored()?, varlen)?;
    with_inputs(stored, starts, |inputs, max_k| {
        let extras = Reads::of(attend);
        let tables = extras.tables()?;
        let inputs = extras.give(inputs.shorter(), max_k, &tables)?;
        let inputs = extras.sinks(inputs.q.shape[2])?.into_iter().fold(inputs, Inputs::sinks);
        let results = (results.0, &results.1);
        typed!(inputs.q.dtype, on_tensors(stored, &inputs, results, d_o))
    })
}

fn on_tensors<T: Element + CudaDType>(
    tensors: [Stored<'_>; 3],
    inputs: &Inputs<'_>,
    results: (Input<'_>, &CudaView<'_, f32>),
    d_o: Input<'_>,
) -> Result<[Option<Tensor>; 3]> {
    let device = device(tensors[0]);
    let stream = device.cuda_stream();
    let here = Here::of(&stream)?;
    let scratch = here.scratch(&stream);
    let gradients = here.attention.backward::<T>(&stream, inputs, results, d_o, &mut lock(&scratch));
    let [dq, dk, dv] = gradients.map_err(refused)?;
    let [q, k, v] = tensors;
    let of = |data, (_, layout): Stored<'_>| Some(tensor(stored(data, device), layout.shape()));
    Ok([of(dq, q), of(dk, k), of(dv, v)])
}
