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
