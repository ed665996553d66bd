//! The parts of a request whose sequences share prefixes, each a request by itself: the prefixes, and the
//! rest of each sequence.
use crate::request::{
    AttentionRequest, Groups, Index, KeysValues, KvCache, KvPages, KvScale, Level, LseView, MAX_ROW_BYTES,
    Mask, Paged, Queries, Scratch, SharedPrefixes, State, TensorView,
};
use crate::{lower, tma};
use spec::States;

/// A valid request that can be cut.
pub(super) struct Parts<'r, 'a> {
    r: &'r AttentionRequest<'a>,
    groups: Groups,
    kv: &'r KvCache,
    /// The entries, the columns and the stride of the block table.
    entries: Index,
    columns: usize,
    stride: usize,
    /// Q as the rows of one batch.
    q: TensorView,
}

/// The places of the states of the prefixes in a workspace, as addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateBuffers {
    /// O of each part of the prefixes: `[batch][seqlen_q][heads][head_dim_v]`.
    o: u64,
    /// Bytes from one part's O to the next part's O.
    o_bytes: u64,
    /// LSE of each part of the prefixes, `[heads][batch][seqlen_q]`; for several groups, a group is a batch.
    lse: u64,
    /// Bytes from one part's LSE to the next part's LSE.
    lse_bytes: u64,
}

impl StateBuffers {
    /// Returns the bytes of the states of `parts` parts.
    pub fn bytes(&self, parts: usize) -> u64 {
        self.o_bytes.saturating_add(self.lse_bytes).saturating_mul(parts as u64)
    }
}

impl<'r, 'a> Parts<'r, 'a> {
    /// # Errors
    /// Returns the reason why no kernel takes the prefixes of these tensors as sequences.
    pub fn new(r: &'r AttentionRequest<'a>, prefixes: &SharedPrefixes) -> Result<Self, &'static str> {
        let KeysValues::Cache(kv) = &r.kv else { return Err(DENSE) };
        let Paged::Table { entries, columns, stride } = kv.paged else { return Err(DENSE) };
        let q = tma::one_batch(&r.q)
            .ok_or("the batches of q are not contiguous: one pass over whole sequences")?;
        if (q.strides[1] as u64).saturating_mul(q.element_bytes()) >= MAX_ROW_BYTES {
            return Err("sequences of q are 2^27 bytes apart or more: one pass over whole sequences");
        }
        if let Groups::Equal { count: count @ 2.., .. } = prefixes.groups
            && u32::try_from(stride.saturating_mul(r.q.shape[0] / count)).is_err()
        {
            return Err(
                "groups are 2^32 entries of the block table apart or more: one pass over whole sequences",
            );
        }
        Ok(Parts { r, groups: prefixes.groups, kv, entries, columns, stride, q })
    }

    /// Returns the places of the states of this number of parts in a workspace at `address`.
    pub fn buffers(&self, parts: usize, address: u64) -> StateBuffers {
        let [batch, queries, heads, columns] = self.r.o.shape;
        let rows = (batch as u64).saturating_mul(queries as u64).saturating_mul(heads as u64);
        let o_bytes = rows.saturating_mul((columns * self.r.o.dtype.bytes()) as u64);
        let lse_bytes = rows.saturating_mul(4).saturating_add(15) / 16 * 16;
        let lse = address.saturating_add(o_bytes.saturating_mul(parts as u64));
        StateBuffers { o: address, o_bytes, lse, lse_bytes }
    }

    /// Returns the states of the parts of the prefixes.
    pub fn states(&self, parts: usize, buffers: &StateBuffers) -> States {
        let [batch, queries, heads, _] = self.r.o.shape;
        let o = TensorView::bshd(buffers.o, 0, self.r.o.dtype, self.r.o.shape);
        let strides = [queries as i64, (batch * queries) as i64];
        let lse = LseView::new(buffers.lse, 0, [batch, heads, queries], strides);
        let (o_bytes, lse_bytes, count) = (buffers.o_bytes, buffers.lse_bytes, parts as u32);
        States { first: lower::state(&State::new(o, lse)), o_bytes, lse_bytes, count, reserved: 0 }
    }

    /// Returns the request over prefixes. A group is a sequence with the queries of all its sequences. Each
    /// of several `parts` of a prefix is a sequence with all queries of the group.
    pub fn prefixes(&self, parts: usize, buffers: &StateBuffers, scratch: Scratch) -> AttentionRequest<'a> {
        let Parts { r, kv, entries, stride, q, .. } = *self;
        let [_, rows, heads, head_dim] = q.shape;
        let [_, row, head, column] = q.strides;
        // The batches, the rows of each, and the strides of Q and LSE from batch to batch.
        let (queries, cache, [batches, each], [q_batch, lse_batch]) = match self.groups {
            Groups::Equal { count, pages, .. } if parts > 1 => {
                // Part `i` takes the length of sequence `i`. Every sequence has at least the keys of a part,
                // so that any length, clamped, is a part's.
                let table = Paged::Table { entries, columns: pages / parts, stride: pages / parts };
                let cache = of_pages(kv, table, pages / parts, parts);
                (Queries::Batched, cache, [parts, rows / count], [0, (buffers.lse_bytes / 4) as i64])
            }
            Groups::Equal { count, pages, .. } => {
                let (sequences, each) = (r.q.shape[0] / count, rows / count);
                let table =
                    Paged::Table { entries, columns: pages, stride: stride.saturating_mul(sequences) };
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
        let shape = [batches, each, heads, head_dim];
        let q = TensorView { shape, strides: [q_batch, row, head, column], ..q };
        let o = TensorView::bshd(buffers.o, 0, r.o.dtype, [batches, each, heads, r.o.shape[3]]);
        let lse = LseView::new(buffers.lse, 0, [batches, heads, each], [lse_batch, rows as i64]);
        let request = AttentionRequest::new(q, queries, KeysValues::Cache(cache), o).lse(lse);
        request.mask(Mask::Full).scores(scores).scratch(scratch)
    }

    /// Returns the request over the rest of each sequence.
    pub fn rest(&self, scratch: Scratch) -> AttentionRequest<'a> {
        let Parts { r, kv, entries, columns, stride, .. } = *self;
        let cache = match self.groups {
            Groups::Equal { pages, rest, .. } => {
                let entries = Index {
                    address: entries.address.wrapping_add(pages as u64 * 4),
                    elements: entries.elements.saturating_sub(pages as u64),
                };
                let paged = Paged::Table { entries, columns: columns.saturating_sub(pages), stride };
                let max_k = kv.max_k.saturating_sub(pages.saturating_mul(kv.pages.keys.shape[1]));
                KvCache { paged, lengths: rest, max_k, total_k: None, ..*kv }
            }
            Groups::Varlen { rest, .. } => of_level(kv, &rest),
        };
        AttentionRequest { kv: KeysValues::Cache(cache), shared_prefixes: None, scratch, ..*r }
    }
}

const DENSE: &str = "without a block table, no two sequences share a page";

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
