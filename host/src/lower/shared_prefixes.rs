//! Launches of the pass over shared prefixes, and of the pass over the rest of each sequence. Each pass is a
//! request by itself. The second pass merges the states that the first pass leaves.
use super::Refusal;
use super::attention::{attention, decode_beside};
use super::merge::state;
use crate::launch::Launch;
use crate::request::{
    AttentionRequest, Groups, Index, KeysValues, KvCache, KvPages, KvScale, Level, LseView, MAX_ROW_BYTES,
    Mask, Paged, Queries, Scratch, SharedPrefixes, State, TensorView, Workspace,
};
use crate::schedule::{Passes, Room};
use crate::tma::one_batch;
use spec::States;

/// Returns the launch of a valid request.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors.
pub(crate) fn passes(r: &AttentionRequest<'_>, s: &Passes) -> Result<Launch, Refusal> {
    let (Some(pass), Some(prefixes)) = (&s.prefix, &r.shared_prefixes) else {
        return attention(r, &s.main);
    };
    let room = pass.room(r.scratch.address());
    let prefix = prefix(r, prefixes, pass.parts, &room).map_err(Refusal::Tensors)?;
    let rest = rest(r, prefixes, &room).map_err(Refusal::Tensors)?;
    let states = states(r, pass.parts, &room);
    Ok(attention(&prefix, &pass.pass)?.then_all(decode_beside(&rest, &s.main, states)?))
}

/// Returns the states of the parts of the prefixes.
fn states(r: &AttentionRequest<'_>, parts: usize, room: &Room) -> States {
    let [batch, queries, heads, _] = r.o.shape;
    let o = TensorView::bshd(room.o, 0, r.o.dtype, r.o.shape);
    let strides = [queries as i64, (batch * queries) as i64];
    let lse = LseView::new(room.lse, 0, [batch, heads, queries], strides);
    let (o_bytes, lse_bytes, count) = (room.o_bytes, room.lse_bytes, parts as u32);
    States { first: state(&State::new(o, lse)), o_bytes, lse_bytes, count, reserved: 0 }
}

/// Returns the request of the pass over prefixes. A group is a sequence with the queries of all its
/// sequences. Each of several `parts` of a prefix is a sequence with all queries of the group.
///
/// # Errors
/// Returns the reason why the pass does not accept the tensors.
pub(crate) fn prefix<'a>(
    r: &AttentionRequest<'a>,
    prefixes: &SharedPrefixes,
    parts: usize,
    room: &Room,
) -> Result<AttentionRequest<'a>, &'static str> {
    let (kv, entries, stride) = paged(r)?;
    let q = one_batch(&r.q).ok_or("the batches of q are not contiguous: one pass over whole sequences")?;
    let [_, rows, heads, head_dim] = q.shape;
    let [_, row, head, column] = q.strides;
    if (row as u64).saturating_mul(q.element_bytes()) >= MAX_ROW_BYTES {
        return Err("sequences of q are 2^27 bytes apart or more: one pass over whole sequences");
    }
    // The batches, the rows of each, the strides of Q and LSE from batch to batch, and of LSE from head to
    // head.
    let (queries, cache, [batches, each], [q_batch, lse_batch]) = match prefixes.groups {
        Groups::Equal { count, pages, .. } if parts > 1 => {
            // Part `i` takes the length of sequence `i`. Every sequence has at least the keys of a part, so
            // that any length, clamped, is a part's.
            let table = Paged::Table { entries, columns: pages / parts, stride: pages / parts };
            let lse_batch = (room.lse_bytes / 4) as i64;
            (
                Queries::Batched,
                of_pages(kv, table, pages / parts, parts),
                [parts, rows / count],
                [0, lse_batch],
            )
        }
        Groups::Equal { count, pages, .. } => {
            let (sequences, each) = (r.q.shape[0] / count, rows / count);
            let stride = stride.saturating_mul(sequences);
            if count > 1 && u32::try_from(stride).is_err() {
                return Err(
                    "groups are 2^32 entries of the block table apart or more: one pass over whole sequences",
                );
            }
            let table = Paged::Table { entries, columns: pages, stride };
            let scales = kv.pages.scales.map(|scale| scale_of_groups(scale, sequences));
            let cache = of_pages(kv, table, pages, count);
            let cache = KvCache { pages: KvPages { scales, ..cache.pages }, ..cache };
            (Queries::Batched, cache, [count, each], [each as i64 * row, each as i64])
        }
        Groups::Varlen { queries, prefix, .. } => {
            (Queries::Varlen(queries), of_level(kv, &prefix), [1, rows], [0, rows as i64])
        }
    };
    let mut scores = r.scores;
    scores.sinks = None;
    let q =
        TensorView { shape: [batches, each, heads, head_dim], strides: [q_batch, row, head, column], ..q };
    let o = TensorView::bshd(room.o, 0, r.o.dtype, [batches, each, heads, r.o.shape[3]]);
    let lse = LseView::new(room.lse, 0, [batches, heads, each], [lse_batch, rows as i64]);
    let request = AttentionRequest::new(q, queries, KeysValues::Cache(cache), o).lse(lse);
    Ok(request.mask(Mask::Full).scores(scores).scratch(partials(&r.scratch, room)))
}

/// Returns the request of the pass over the rest of each sequence.
///
/// # Errors
/// Returns the reason why the pass does not accept the tensors.
pub(crate) fn rest<'a>(
    r: &AttentionRequest<'a>,
    prefixes: &SharedPrefixes,
    room: &Room,
) -> Result<AttentionRequest<'a>, &'static str> {
    let (kv, entries, stride) = paged(r)?;
    let cache = match (prefixes.groups, kv.paged) {
        (Groups::Equal { pages, rest, .. }, Paged::Table { columns, .. }) => {
            let entries = Index {
                address: entries.address.wrapping_add(pages as u64 * 4),
                elements: entries.elements.saturating_sub(pages as u64),
            };
            let paged = Paged::Table { entries, columns: columns.saturating_sub(pages), stride };
            let max_k = kv.max_k.saturating_sub(pages.saturating_mul(kv.pages.keys.shape[1]));
            KvCache { paged, lengths: rest, max_k, total_k: None, ..*kv }
        }
        (Groups::Varlen { rest, .. }, _) => of_level(kv, &rest),
        (Groups::Equal { .. }, Paged::Dense { .. }) => return Err(DENSE),
    };
    let request = AttentionRequest { kv: KeysValues::Cache(cache), shared_prefixes: None, ..*r };
    Ok(request.scratch(partials(&r.scratch, room)))
}

const DENSE: &str = "without a block table, no two sequences share a page";

/// Returns the KV cache, and the entries and the stride of its block table.
fn paged<'r>(r: &'r AttentionRequest<'_>) -> Result<(&'r KvCache, Index, usize), &'static str> {
    match &r.kv {
        KeysValues::Cache(kv) => match kv.paged {
            Paged::Table { entries, stride, .. } => Ok((kv, entries, stride)),
            Paged::Dense { .. } => Err(DENSE),
        },
        KeysValues::Tensors { .. } | KeysValues::Varlen { .. } => Err(DENSE),
    }
}

/// Returns the KV cache of `sequences` sequences with this block table and `pages` whole pages each.
fn of_pages(kv: &KvCache, paged: Paged, pages: usize, sequences: usize) -> KvCache {
    let max_k = pages.saturating_mul(kv.pages.keys.shape[1]);
    KvCache { paged, max_k, total_k: Some(max_k.saturating_mul(sequences)), ..*kv }
}

/// Returns the KV cache of a level.
fn of_level(kv: &KvCache, level: &Level) -> KvCache {
    let Level { entries, columns, stride, lengths } = *level;
    let max_k = columns.saturating_mul(kv.pages.keys.shape[1]);
    KvCache { paged: Paged::Table { entries, columns, stride }, lengths, max_k, total_k: None, ..*kv }
}

/// Returns the scales of groups of this number of sequences: a group has the scale of its first sequence.
fn scale_of_groups(scale: KvScale, sequences: usize) -> KvScale {
    match scale {
        KvScale::Device { address, elements, strides: [sequence, head] } => {
            let strides = [sequence.saturating_mul(sequences as i64), head];
            KvScale::Device { address, elements, strides }
        }
        other => other,
    }
}

/// Returns the scratch memory of one pass.
fn partials(scratch: &Scratch, room: &Room) -> Scratch {
    match *scratch {
        Scratch::Memory { counters, workspace } => {
            let bytes = workspace.bytes.saturating_sub(room.partials.wrapping_sub(workspace.address));
            Scratch::Memory { workspace: Workspace { address: room.partials, bytes }, counters }
        }
        other => other,
    }
}
