//! Merge kernels: they merge partial states of disjoint keys into attention over all keys.
use crate::*;
use core::marker::PhantomData;

/// Merges partial states of element type `E` and stores `O`. A thread merges eight columns of a row of one
/// head.
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
    const BLOCKS_PER_SM: u32 = 5;
    fn grid(params: &MergeParams) -> [u32; 3] {
        [params.parts.blocks(), 1, 1]
    }
}

/// A partial state, or the output.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeState {
    /// Normalised O.
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
    /// The second state, if there is one.
    pub second: MergeState,
    /// Distance in bytes from the O of each state to the O of the next state, for the second and all later
    /// states. The number is in two's complement.
    pub o_bytes: u64,
    /// Distance in bytes from the LSE of each state to the LSE of the next state, for the second and all
    /// later states.
    pub lse_bytes: u64,
    /// The output, which may alias a state.
    pub result: MergeState,
    /// Attention sinks: one natural logit per head. Minus infinity means no sink.
    pub sinks: PerHead,
    /// The distribution of all rows' heads over threads, row by row.
    pub parts: RowParts,
    /// Heads per row.
    pub heads: FastDiv,
    /// Rows per batch.
    pub rows: FastDiv,
    /// Number of states, at least 1.
    pub count: u32,
    /// Factor that converts the states' LSE to base 2.
    pub to_two: f32,
    /// Factor that converts an LSE to base 2 into the output's LSE.
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
