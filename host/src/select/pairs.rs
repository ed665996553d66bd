//! The pairs of kernels that take a mixed batch.
use super::Query;
use crate::schedule::most;
use crate::{AttnInfo, DType, MaskKind};
use spec::{Class, ProblemKind};

/// A decode kernel for the sequences of few queries, and a prefill kernel for the others.
pub(crate) type Pair = [&'static AttnInfo; 2];

/// Returns the pairs of kernels for a mixed batch, in order of preference: with Hopper's kernel, if it
/// accepts the tensors, then with portable kernels. A decode kernel takes part if it takes the columns, and
/// if a thread block holds one query with all its heads.
pub(crate) fn pairs<'a>(q: &'a Query<'_>) -> impl Iterator<Item = Pair> + 'a {
    let is_hoppers = |e: &&AttnInfo| q.kind.mixed && e.has_maps();
    let hopper = q.solving(Class::Paged).filter(is_hoppers).filter(|_| q.on.tensor_maps);
    let hopper = hopper.min_by_key(|e| e.columns()).filter(|e| q.layout.suits(e).is_ok());
    let size = |e: &AttnInfo| (e.kv_dtype, e.o_dtype, e.head_dim);
    hopper.into_iter().chain(q.solving(Class::Many)).flat_map(move |many| {
        let takes = |e: &AttnInfo| e.has_columns_for(&q.kind) && e.computes(&q.kind);
        // `spec::beside` names the same pairs. Of equal decode kernels, the first one has fewer rows.
        let is_beside = move |e: &&AttnInfo| (size(e), e.mask) == (size(many), many.mask) && takes(e);
        let all = spec::of_class(Class::Few, many.dtype).filter(is_beside);
        all.filter(|few| most(q.problem, few) > 0).map(move |few| [few, many])
    })
}

/// Returns the pair that takes every batch of problems with this shape, of equal and of varlen queries.
pub(crate) fn pair_in_any_batch(q: &Query<'_>) -> Option<Pair> {
    let mixed = q.problem.variant.is_none() && q.problem.is_of_mixed_kernels() && !q.problem.sinks;
    let q = &Query { kind: ProblemKind { mixed, ..q.kind }, ..*q };
    // With windows, the number of splits depends on the form of the request. On int8 caches, kernels of
    // windows also take full and causal masks.
    let is_whole = |e: &AttnInfo| e.mask == MaskKind::Causal || e.kv_dtype == DType::Int8;
    let mut all = pairs(q).filter(|_| q.kind.mask != MaskKind::Local);
    all.find(|pair| pair.iter().all(|e| is_whole(e) && q.runs(e)))
}
