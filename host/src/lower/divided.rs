//! Parameters of the kernel that divides padded sequences into used queries and padding.
use super::tensors::{cu_seqlens_q, integers, tensor, varlen_keys};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, Index, KeysValues, Paged, Queries};
use spec::{CuSeqlens, DividedSequences, Integers, Kernel, UsedQueries, UsedQueriesParams};

/// The integers of sequences: offsets in Q and in K, lengths, and the pages of a dense KV cache.
type Numbers = [Integers; 4];

/// Returns the integers of a request's sequences.
fn numbers(r: &AttentionRequest<'_>, batch: usize) -> Numbers {
    let [cu_seqlens_k, lengths, pages] = match &r.kv {
        KeysValues::Varlen { keys, .. } => {
            let [starts, used] = varlen_keys(keys, batch);
            [starts, used, Integers::NONE]
        }
        KeysValues::Cache(kv) => {
            let rows = match kv.paged {
                Paged::Dense { rows } => rows,
                Paged::Table { .. } => None,
            };
            [Integers::NONE, integers(Some(kv.lengths), batch), integers(rows, batch)]
        }
        KeysValues::Tensors { .. } | KeysValues::Listed(_) => [Integers::NONE; 3],
    };
    [cu_seqlens_q(&r.queries), cu_seqlens_k, lengths, pages]
}

/// Adds the step that divides the sequences of a valid request: it writes the integers of `to`.
pub(crate) fn divided(
    from: &AttentionRequest<'_>,
    to: &AttentionRequest<'_>,
    place: Place,
    launch: &mut Launch,
) {
    let of = |r: &AttentionRequest<'_>| match &r.queries {
        Queries::Varlen(queries) => (queries.batch, queries.seqused_q),
        Queries::Batched => (0, None::<Index>),
    };
    let ((batch, used), (twice, _)) = (of(from), of(to));
    let [offsets, cu_seqlens_k, lengths, pages] = numbers(from, batch);
    let rows = tensor(&from.q).rows;
    let [own_q, own_k, own_lengths, own_pages] = numbers(to, twice);
    let divided =
        DividedSequences { cu_seqlens_q: own_q, cu_seqlens_k: own_k, lengths: own_lengths, pages: own_pages };
    let params = UsedQueriesParams {
        queries: CuSeqlens { offsets, rows, longest: rows },
        seqused_q: integers(used, batch),
        cu_seqlens_k,
        lengths,
        pages,
        divided,
    };
    launch.step(place, UsedQueries::grid(&params), &params, []);
}
