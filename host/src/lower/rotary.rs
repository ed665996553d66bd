//! Parameters of rotary embedding in an append.
use super::tensors::{NO_TENSOR, tensor};
use crate::request::{Append, Rotary, RotaryStyle};
use spec::{APPEND_COLUMNS, Angles, AppendParams, DType, PartPairs, RotaryAppendParams};

/// Returns the parameters of a valid rotation in an append, whose parameters are `params`.
pub(super) fn rotary(append: &Append, rotary: &Rotary, params: AppendParams) -> RotaryAppendParams {
    let [q, rotated_q] =
        rotary.queries.map_or([NO_TENSOR; 2], |queries| [tensor(&queries.q), tensor(&queries.rotated)]);
    let (first, parts) = (rotary.first_column / APPEND_COLUMNS, rotary.dims() / APPEND_COLUMNS);
    let pairs = match rotary.style {
        RotaryStyle::Halves => PartPairs::halves,
        RotaryStyle::Interleaved => PartPairs::neighbours,
    };
    let cos = tensor(&rotary.cos);
    let angles = Angles {
        cos: cos.base,
        sin: rotary.sin.address,
        row_bytes: cos.row_bytes.into(),
        positions: rotary.positions.address,
        rows: cos.rows,
        eights: (rotary.cos.shape[3] / 8) as u32,
        tokens: params.slots.count,
        wide_positions: u32::from(rotary.positions.wide),
        wide: u32::from(rotary.cos.dtype == DType::F32),
        reserved: 0,
    };
    RotaryAppendParams {
        append: params,
        q,
        rotated_q,
        angles,
        pairs: pairs(first as u32, parts as u32 / 2),
        key_heads: append.k.shape[2] as u32,
        interleaved: u32::from(rotary.style == RotaryStyle::Interleaved),
    }
}

/// Returns the number of query heads that a launch rotates.
pub(super) fn query_heads(append: &Append) -> usize {
    append.rotary.and_then(|rotary| rotary.queries).map_or(0, |queries| queries.q.shape[2])
}
