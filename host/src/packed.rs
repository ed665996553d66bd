//! Packed sequences: where each begins is known on the device alone.
use crate::Index;

/// Sequences of any lengths, one behind the other in tensors of one batch (FlashAttention's `varlen`): `q`
/// and `o` are `[1, rows of all sequences, heads_q, head_dim]`, `k` and `v` likewise, and the log-sum-exp is
/// `[1, heads_q, rows of all sequences]`.
///
/// Sequence `b` has the rows of Q from `cu_seqlens_q[b]` to before `cu_seqlens_q[b + 1]`, and those of K
/// likewise. Launches read this on the device when they run, so that a CUDA graph may be replayed with other
/// lengths. Rows of O that are no sequence's are not written; a sequence without keys gives 0, and `-inf` as
/// its log-sum-exp. Integers that make no sense (negative, falling, past the tensor's rows) give wrong
/// numbers, never an access outside of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packed {
    /// Sequences.
    pub batch: usize,
    /// `batch + 1` integers, 0 first: where each sequence begins among the rows of Q and O, and where the
    /// last one ends.
    pub cu_seqlens_q: Index,
    /// The same for K and V.
    pub cu_seqlens_k: Index,
    /// `batch` integers: keys of each sequence that exist; `None` where all of its rows do.
    pub seqused_k: Option<Index>,
    /// Most queries of a sequence: what a launch has blocks for. Of a longer sequence some rows are not
    /// written.
    pub max_seqlen_q: usize,
    /// Most keys of a sequence, as far as known: only a plan's choices depend on it.
    pub max_seqlen_k: usize,
}

impl Packed {
    /// `batch` sequences whose rows all exist.
    pub const fn new(
        batch: usize,
        cu_seqlens_q: Index,
        cu_seqlens_k: Index,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
    ) -> Self {
        Packed { batch, cu_seqlens_q, cu_seqlens_k, seqused_k: None, max_seqlen_q, max_seqlen_k }
    }

    /// The same with so many keys of each sequence, where that is less than its rows.
    #[must_use]
    pub const fn used(mut self, seqused_k: Index) -> Self {
        self.seqused_k = Some(seqused_k);
        self
    }
}

/// Queries of sequences of any lengths, one behind the other, whose keys and values lie in a cache: sequence
/// `b` has rows `cu_seqlens_q[b]` to before `cu_seqlens_q[b + 1]`. As with [`Packed`], launches read this on
/// the device when they run, and rows that are no sequence's are not written.
///
/// Not for decoding: see [`Decode::packed`](crate::Decode::packed).
///
/// ```
/// # fn main() -> Result<(), ferroflash::Error> {
/// use ferroflash::{Capabilities, DType, Decode, Index, KvCache, KvPages, Mask, PackedQueries};
/// use ferroflash::{PageView, TensorView};
/// # let [q, o, keys, values, table, lengths, starts] = [1, 2, 3, 4, 5, 6, 7].map(|n| n << 40);
///
/// // Chunks of four prompts, 2000 tokens together, the longest of 1024, whose keys have been appended.
/// let (batch, tokens, longest) = (4, 2000, 1024);
/// let shape = [1, tokens, 32, 128];
/// let view = |address| TensorView::bshd(address, tokens as u64 * 32 * 128, DType::F16, shape);
/// let pages = [1000, 16, 8, 128]; // pages, keys of a page, key heads, head_dim
/// let pool = |address| PageView::nhd(address, 1000 * 16 * 8 * 128, DType::F16, pages);
/// let (table, lengths) = (Index::new(table, 4 * 512), Index::new(lengths, 4));
/// let cache = KvCache::paged(KvPages::new(pool(keys), pool(values)), table, 512, lengths);
///
/// let queries = PackedQueries::new(batch, Index::new(starts, batch as u64 + 1), longest);
/// // What a scheduler knows of its sequences' keys, which tables alone would overestimate.
/// let cache = cache.max_k(4096).total_k(9000);
/// let chunks = Decode::new(view(q), cache, view(o)).packed(queries).mask(Mask::Causal);
///
/// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
/// let plan = ferroflash::plan_decode(&chunks, h200)?;
/// assert_eq!(plan.contract().symbol, "hopper_paged_f16_d128_causal_128x128");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedQueries {
    /// Sequences.
    pub batch: usize,
    /// `batch + 1` integers, 0 first: where each sequence begins, and where the last one ends.
    pub cu_seqlens_q: Index,
    /// Most queries of a sequence: what a launch has blocks for. Of a longer sequence some rows are not
    /// written.
    pub max_seqlen_q: usize,
}

impl PackedQueries {
    /// `batch` sequences.
    pub const fn new(batch: usize, cu_seqlens_q: Index, max_seqlen_q: usize) -> Self {
        PackedQueries { batch, cu_seqlens_q, max_seqlen_q }
    }
}
