//! The merge family: attention over some keys and attention over others become attention over all.
use crate::*;
use core::marker::PhantomData;

/// Merges partial states of element type `E` and stores `O`. A thread has eight columns of a head's row.
pub struct Merge<E, O>(PhantomData<(E, O)>);

/// Columns that a thread merges.
pub const MERGE_COLUMNS: usize = 8;

impl<E: Element, O: Element> Line for Merge<E, O> {
    type Info = MergeInfo;
    const INFO: MergeInfo =
        MergeInfo { contract: Contract::of::<Self>(""), states: E::DTYPE, output: O::DTYPE };
}

impl<E: Element, O: Element> Kernel for Merge<E, O> {
    type Params = MergeParams;
    const THREADS: u32 = 256;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 3;
    fn grid(params: &MergeParams) -> [u32; 3] {
        [params.parts.blocks(), 1, 1]
    }
}

/// One partial state, or where a result goes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeState {
    /// O, normalised.
    pub o: Tensor,
    /// Log-sum-exp of each row; that of a result may be unwanted.
    pub lse: RowValues,
}

/// What a merge kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeParams {
    /// The first state.
    pub first: MergeState,
    /// The second, where there is one.
    pub second: MergeState,
    /// Bytes from the second state's O to the third's, and from that to the next (two's complement).
    pub o_bytes: u64,
    /// The same of their log-sum-exps.
    pub lse_bytes: u64,
    /// Where the result goes; that may be where a state is.
    pub result: MergeState,
    /// A logit of each head that no key has: natural, minus infinity where there is none.
    pub sinks: PerHead,
    /// Heads of all rows of all batches, row by row, dealt out to threads.
    pub parts: RowParts,
    /// Heads of a row.
    pub heads: FastDiv,
    /// Rows of a batch.
    pub rows: FastDiv,
    /// States, 1 or more.
    pub count: u32,
    /// The states' log-sum-exps times this are base 2.
    pub to_two: f32,
    /// A log-sum-exp, base 2, times this is the result's.
    pub from_two: f32,
    /// Zero.
    pub reserved: u32,
}

/// A compiled [`Merge`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of the states.
    pub states: DType,
    /// Element type of the result.
    pub output: DType,
}
