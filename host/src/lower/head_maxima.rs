//! Parameters of the kernel that finds the largest score of each query head.
use super::tensors::{cu_seqlens_q, integers};
use crate::Problem;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, Index, LseView, Sinks};
use spec::{CuSeqlens, HeadMaxima, HeadMaximaParams, Integers, Kernel};

/// Adds the step that finds the largest scores of heads among those of rows, `maxima`, for a valid request.
/// The rows span less than 2^32 elements.
pub(crate) fn head_maxima(
    (r, p): (&AttentionRequest<'_>, &Problem),
    maxima: &LseView,
    heads: Sinks,
    place: Place,
    launch: &mut Launch,
) {
    let [[batches, rows, count, _], ..] = p.shapes();
    let stride = |dim: usize, extent| if extent > 1 { maxima.strides[dim] as u32 } else { 0 };
    let rows = rows as u32;
    let params = HeadMaximaParams {
        rows: Integers { base: maxima.address, count: maxima.elements as u32, reserved: 0 },
        queries: CuSeqlens { offsets: cu_seqlens_q(&r.queries), rows, longest: rows },
        strides: [stride(0, batches), stride(1, count)],
        batches: batches as u32,
        reserved: 0,
        heads: integers(Some(Index::new(heads.address, heads.elements)), count),
    };
    launch.step(place, HeadMaxima::grid(&params), &params, []);
}
