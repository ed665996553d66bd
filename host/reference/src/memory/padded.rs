//! Requests with padded queries, made of a problem whose second sequences are padding.
use crate::work::Binder;
use ferroflash::request::{AttentionRequest, Index, KeysValues, Paged, Queries};

/// Joins the integers of sequences and their padding. The number of used queries of a sequence without
/// padding, or without used queries, is garbage that means the same.
pub(super) fn joined(all: Vec<(&'static str, Vec<i32>)>) -> Vec<(&'static str, Vec<i32>)> {
    let every_second = |numbers: &[i32]| numbers.iter().step_by(2).copied().collect::<Vec<_>>();
    let used = |starts: &[i32]| -> Vec<i32> {
        let own = starts.windows(3).step_by(2);
        own.map(|w| match [w[1].wrapping_sub(w[0]), w[2].wrapping_sub(w[1])] {
            [0, _] => -7,
            [_, 0] => i32::MAX,
            [used, _] => used,
        })
        .collect()
    };
    let starts = all.iter().find(|(name, _)| *name == "cu_seqlens_q").map(|(_, starts)| used(starts));
    let joined = all.into_iter().map(|(name, numbers)| (name, every_second(&numbers)));
    joined.chain(starts.map(|used| ("seqused_q", used))).collect()
}

/// Makes the request one of the joined sequences. `rows` has the pages of the problem's sequences, if each
/// sequence has one.
pub(super) fn join(
    request: &mut AttentionRequest<'static>,
    seqused_q: Index,
    rows: &[u32],
    binder: &mut Binder<'_>,
) {
    if let Queries::Varlen(queries) = &mut request.queries {
        queries.batch /= 2;
        queries.max_seqlen_q *= 2;
        *queries = queries.seqused_q(seqused_q);
    }
    let KeysValues::Cache(kv) = &mut request.kv else { return };
    match &mut kv.paged {
        Paged::Table { stride, .. } => *stride *= 2,
        Paged::Dense { rows: Some(index) } => {
            let rows: Vec<_> = rows.iter().step_by(2).copied().collect();
            let address = binder.input("rows of padded sequences", || bytes!(rows));
            *index = Index::new(address, rows.len() as u64);
        }
        Paged::Dense { .. } => {
            for view in [&mut kv.pages.keys, &mut kv.pages.values] {
                (view.shape[0], view.strides[0]) = (view.shape[0] / 2, view.strides[0] * 2);
            }
        }
        _ => {}
    }
}
