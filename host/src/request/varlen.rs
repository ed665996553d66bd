//! Varlen: sequences of any lengths in one tensor. The sequences' offsets live in device memory.

/// 32-bit integers in device memory: lengths or page indices. The integers may be signed or unsigned, because
/// valid values are equal in both types. A launch reads their values when it runs. Invalid values give wrong
/// results, but no access outside of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Index<M = u64> {
    /// Device address. A multiple of 4.
    pub address: M,
    /// Number of integers from `address` on.
    pub elements: u64,
}

impl<M> Index<M> {
    /// Creates an index: `elements` integers from `address` on.
    pub const fn new(address: M, elements: u64) -> Self {
        Index { address, elements }
    }
}

/// Queries of varlen sequences. Sequence `b` has rows `cu_seqlens_q[b]..cu_seqlens_q[b + 1]` of Q and O. `q`
/// and `o` are `[1, rows of all sequences, heads_q, head_dim]`, and the LSE is
/// `[1, heads_q, rows of all sequences]`.
///
/// A launch reads `cu_seqlens_q` on the device when it runs, so a CUDA graph can be replayed with other
/// lengths. The kernel does not write rows of O that belong to no sequence. Invalid integers (negative,
/// decreasing, beyond the tensor's rows) give wrong results, but no access outside of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VarlenQueries<M = u64> {
    /// Sequences.
    pub batch: usize,
    /// `batch + 1` offsets, 0 first: the start of each sequence, and the end of the last one.
    pub cu_seqlens_q: Index<M>,
    /// `batch` integers: the number of used queries per sequence, or `None` if all rows are used. The rows
    /// behind are padding: they see no key, so they have O = 0 and LSE = `-inf`. The last used query aligns
    /// with the last key. A launch needs a workspace: plan with [`Scratch::Fastest`](super::Scratch).
    pub seqused_q: Option<Index<M>>,
    /// Maximum number of queries per sequence; the grid depends on it. The kernel does not write the further
    /// rows of a longer sequence. If the maximum is 1 and Q has `batch` rows, then row `b` is the query of
    /// sequence `b`, as in FlashAttention-2. `cu_seqlens_q` must then be `0..=batch`, and kernels need not
    /// read it. If Q has one row more, sequences may have no query.
    pub max_seqlen_q: usize,
}

impl<M: Copy> VarlenQueries<M> {
    /// Creates the queries of `batch` sequences.
    pub const fn new(batch: usize, cu_seqlens_q: Index<M>, max_seqlen_q: usize) -> Self {
        VarlenQueries { batch, cu_seqlens_q, seqused_q: None, max_seqlen_q }
    }

    /// Creates the queries of as many sequences as the offsets have. No offset means no sequence, which
    /// planning rejects.
    pub const fn of_all(cu_seqlens_q: Index<M>, max_seqlen_q: usize) -> Self {
        Self::new(cu_seqlens_q.elements.saturating_sub(1) as usize, cu_seqlens_q, max_seqlen_q)
    }

    /// Sets the number of used queries per sequence. A sequence may have more rows than used queries.
    #[must_use]
    pub const fn seqused_q(mut self, seqused_q: Index<M>) -> Self {
        self.seqused_q = Some(seqused_q);
        self
    }
}

/// Keys and values of varlen sequences. The device reads their offsets like the offsets of [`VarlenQueries`].
/// `k` and `v` are `[1, rows of all sequences, heads_k, head_dim]`. A sequence without keys gives O = 0 and
/// LSE = `-inf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VarlenKeys<M = u64> {
    /// `batch + 1` offsets, 0 first: the start of each sequence in the rows of K and V, and the end of the
    /// last one.
    pub cu_seqlens_k: Index<M>,
    /// `batch` integers: the number of valid keys per sequence, or `None` if all rows are valid.
    pub seqused_k: Option<Index<M>>,
    /// Maximum number of keys per sequence. The selection of a kernel depends on this number. If a sequence
    /// has more keys, a kernel may ignore the further keys.
    pub max_seqlen_k: usize,
}

impl<M: Copy> VarlenKeys<M> {
    /// Creates the keys of sequences whose rows are all valid.
    pub const fn new(cu_seqlens_k: Index<M>, max_seqlen_k: usize) -> Self {
        VarlenKeys { cu_seqlens_k, seqused_k: None, max_seqlen_k }
    }

    /// Sets the number of valid keys per sequence. A sequence may have more rows than valid keys.
    #[must_use]
    pub const fn seqused_k(mut self, seqused_k: Index<M>) -> Self {
        self.seqused_k = Some(seqused_k);
        self
    }
}
