//! Attention on tensors on a GPU, dense or varlen.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::inputs::{Read, Stored, input};
use crate::merge::compute;
use crate::run::{Outputs, device};
use crate::starts::Starts;
use candle::{Result, Tensor};
use ferroflash::cudarc::Inputs;
use ferroflash::request::{VarlenKeys, VarlenQueries};

/// Computes attention on tensors.
pub(crate) fn forward(
    inputs: [Stored<'_>; 3],
    attend: &Attend,
    packed: Option<Starts<&Tensor>>,
    lse: bool,
) -> Result<Outputs> {
    let device = device(inputs[0]);
    with_inputs(inputs, packed, |inputs, max_k| compute(device, inputs, attend, max_k, lse, packed.is_some()))
}

/// Calls a function with the inputs of tensors, and with the maximum number of keys of a sequence.
pub(crate) fn with_inputs<T>(
    [q, k, v]: [Stored<'_>; 3],
    packed: Option<Starts<&Tensor>>,
    run: impl FnOnce(Inputs<'_>, usize) -> Result<T>,
) -> Result<T> {
    let is_packed = packed.is_some();
    let (q, k, v) = (input("q", q, is_packed)?, input("k", k, is_packed)?, input("v", v, is_packed)?);
    let Some(Starts { q: of_q, k: of_k, max_q, max_k }) = packed else {
        return run(Inputs::of(q, k, v), k.shape[1]);
    };
    if of_q.shape() != of_k.shape() {
        let expected = format_args!("the shape of seqlens_q, {:?}", of_q.shape());
        return Err(invalid("seqlens_k", format_args!("{:?}", of_k.shape()), expected));
    }
    let (of_q, of_k) = (Read::of("seqlens_q", of_q), Read::of("seqlens_k", of_k));
    let sequences = of_q.shape().elem_count().saturating_sub(1);
    let queries = VarlenQueries::new(sequences, of_q.numbers(1)?, max_q);
    run(Inputs::of_varlen(q, k, v, queries, VarlenKeys::new(of_k.numbers(1)?, max_k)), max_k)
}
