//! Varlen sequences: sequences of any lengths, one behind the other in tensors of one batch. Where each begins
//! is in device memory.

/// Integers of 32 bits in device memory: lengths, or indices of pages; signed or not, which is the same for
/// every number that is valid. Launches read what is there when they run. Invalid numbers give wrong results,
/// never an access outside of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Integers from there on.
    pub elements: u64,
}

impl Index {
    /// `elements` integers from `address` on.
    pub const fn new(address: u64, elements: u64) -> Self {
        Index { address, elements }
    }
}

/// Queries of varlen sequences: sequence `b` has the rows of Q and O from `cu_seqlens_q[b]` to before
/// `cu_seqlens_q[b + 1]`. `q` and `o` are `[1, rows of all sequences, heads_q, head_dim]`, and the log-sum-exp
/// is `[1, heads_q, rows of all sequences]`.
///
/// Launches read `cu_seqlens_q` on the device when they run, so that a CUDA graph may be replayed with other
/// lengths. Rows of O that belong to no sequence are not written. Invalid integers (negative, falling, past
/// the tensor's rows) give wrong results, never an access outside of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VarlenQueries {
    /// Sequences.
    pub batch: usize,
    /// `batch + 1` integers, 0 first: where each sequence begins, and where the last one ends.
    pub cu_seqlens_q: Index,
    /// Most queries of a sequence: what a launch has thread blocks for. Of a longer sequence some rows are
    /// not written.
    pub max_seqlen_q: usize,
}

impl VarlenQueries {
    /// `batch` sequences.
    pub const fn new(batch: usize, cu_seqlens_q: Index, max_seqlen_q: usize) -> Self {
        VarlenQueries { batch, cu_seqlens_q, max_seqlen_q }
    }
}

/// Keys and values of varlen sequences, read on the device as [`VarlenQueries`] are. `k` and `v` are
/// `[1, rows of all sequences, heads_k, head_dim]`. A sequence without keys gives 0, and `-inf` as its
/// log-sum-exp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VarlenKeys {
    /// `batch + 1` integers, 0 first: where each sequence begins among the rows of K and V, and where the
    /// last one ends.
    pub cu_seqlens_k: Index,
    /// `batch` integers: keys of each sequence that exist; `None` where all of its rows do.
    pub seqused_k: Option<Index>,
    /// Most keys of a sequence, as far as known: only a plan's choices depend on it.
    pub max_seqlen_k: usize,
}

impl VarlenKeys {
    /// Sequences whose rows all exist.
    pub const fn new(cu_seqlens_k: Index, max_seqlen_k: usize) -> Self {
        VarlenKeys { cu_seqlens_k, seqused_k: None, max_seqlen_k }
    }

    /// Sets how many keys of each sequence exist, where these may be fewer than its rows.
    #[must_use]
    pub const fn seqused_k(mut self, seqused_k: Index) -> Self {
        self.seqused_k = Some(seqused_k);
        self
    }
}
