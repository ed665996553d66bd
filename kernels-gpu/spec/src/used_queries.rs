//! The kernel that divides padded varlen sequences into used queries and padding.
use crate::*;

/// Divides each sequence of varlen queries into two: first its used queries, then its padding, a sequence
/// without keys. Attention kernels then take twice the number of sequences.
pub struct UsedQueries;

/// Integers of each array that a [`UsedQueries`] block writes.
pub const DIVIDED_INTEGERS: u32 = 128;

/// Parameters of [`UsedQueries`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsedQueriesParams {
    /// The sequences in Q, with their padding.
    pub queries: CuSeqlens,
    /// Number of used queries of each sequence.
    pub seqused_q: Integers,
    /// Offsets of the sequences in K, if keys are varlen.
    pub cu_seqlens_k: Integers,
    /// Number of valid keys of each sequence, if the request has these numbers.
    pub lengths: Integers,
    /// The page of each sequence on a dense KV cache; none if sequence `b` is page `b`.
    pub pages: Integers,
    /// The integers of the divided sequences, which the kernel writes.
    pub divided: DividedSequences,
}

/// The integers of divided sequences: sequence `2b` has the used queries of sequence `b`, and sequence
/// `2b + 1` its padding. The kernel writes the integers that exist.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DividedSequences {
    /// Offsets in Q.
    pub cu_seqlens_q: Integers,
    /// Offsets in K.
    pub cu_seqlens_k: Integers,
    /// Valid keys of each sequence: 0 for padding.
    pub lengths: Integers,
    /// The page of each sequence on a dense KV cache.
    pub pages: Integers,
}
contract::no_padding! {
    UsedQueriesParams { queries, seqused_q, cu_seqlens_k, lengths, pages, divided }
    DividedSequences { cu_seqlens_q, cu_seqlens_k, lengths, pages }
}

impl Kernel for UsedQueries {
    type Params = UsedQueriesParams;
    const THREADS: u32 = DIVIDED_INTEGERS;
    const SMEM_BYTES: usize = 0;
    fn grid(params: &UsedQueriesParams) -> [u32; 3] {
        [params.divided.cu_seqlens_q.count().div_ceil(DIVIDED_INTEGERS), 1, 1]
    }
}

impl Line for UsedQueries {
    type Info = ExtraInfo;
    const INFO: ExtraInfo = ExtraInfo {
        contract: Contract::of::<Self>(""),
        what: "divides sequences into used queries and padding",
    };
}

/// A compiled kernel that runs before or behind the kernels of an attention, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// This text says what the kernel does.
    pub what: &'static str,
}
