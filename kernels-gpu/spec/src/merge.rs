//! Merge kernels: they merge partial states of disjoint keys into attention over all keys.
use crate::*;
use core::marker::PhantomData;

/// Merges partial states of element type `E` and stores `O`. A thread has eight columns of a head's row.
pub struct Merge<E, O>(PhantomData<(E, O)>);

/// Columns per thread.
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

/// A partial state, or an output.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeState {
    /// O, normalised.
    pub o: Tensor,
    /// LSE of each row; an output may lack it.
    pub lse: RowValues,
}

/// Parameters of a merge kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeParams {
    /// The first state.
    pub first: MergeState,
    /// The second state, if any.
    pub second: MergeState,
    /// Bytes from each state's O to the next state's O, from the second state on (two's complement).
    pub o_bytes: u64,
    /// Bytes from each state's LSE to the next state's LSE, from the second state on.
    pub lse_bytes: u64,
    /// The output; it may alias a state.
    pub result: MergeState,
    /// Attention sinks: one natural logit per head; minus infinity means none.
    pub sinks: PerHead,
    /// The distribution of all rows' heads over threads, row by row.
    pub parts: RowParts,
    /// Heads per row.
    pub heads: FastDiv,
    /// Rows per batch.
    pub rows: FastDiv,
    /// Number of states, at least 1.
    pub count: u32,
    /// Factor from the states' LSE to base 2.
    pub to_two: f32,
    /// Factor from base 2 to the output's LSE.
    pub from_two: f32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    MergeState { o, lse }
    MergeParams {
        first, second, o_bytes, lse_bytes, result, sinks, parts, heads, rows, count, to_two,
        from_two, reserved
    }
}

/// A compiled [`Merge`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of the states.
    pub states: DType,
    /// Dtype of the output.
    pub output: DType,
}
