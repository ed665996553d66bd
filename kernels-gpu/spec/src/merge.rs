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

/// Partial states of equal strides, which lie equally far apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// The first state, if there is one.
    pub first: MergeState,
    /// Distance in bytes from the O of each state to the O of the next state, in two's complement.
    pub o_bytes: u64,
    /// Distance in bytes from the LSE of each state to the LSE of the next state, in two's complement.
    pub lse_bytes: u64,
    /// Number of states.
    pub count: u32,
    /// Padding: 0.
    pub reserved: u32,
}

impl States {
    /// No states.
    pub const NONE: Self = States {
        first: MergeState {
            o: Tensor {
                base: 0,
                batch_bytes: 0,
                head_bytes: 0,
                row_bytes: 0,
                rows: 0,
                chunks: 0,
                reserved: 0,
            },
            lse: RowValues { base: 0, batch_bytes: 0, head_bytes: 0, row_bytes: 0 },
        },
        o_bytes: 0,
        lse_bytes: 0,
        count: 0,
        reserved: 0,
    };

    /// State `i`, which must be below `count`.
    #[inline(always)]
    pub const fn state(&self, i: u32) -> MergeState {
        let MergeState { mut o, mut lse } = self.first;
        o.base = o.base.wrapping_add((i as u64).wrapping_mul(self.o_bytes));
        lse.base = lse.base.wrapping_add((i as u64).wrapping_mul(self.lse_bytes));
        MergeState { o, lse }
    }
}

/// Parameters of a merge kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeParams {
    /// The first state.
    pub first: MergeState,
    /// The second and all later states.
    pub others: States,
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
    /// Factor that converts the states' LSE to base 2.
    pub to_two: f32,
    /// Factor that converts an LSE to base 2 into the output's LSE.
    pub from_two: f32,
}
contract::no_padding! {
    MergeState { o, lse }
    States { first, o_bytes, lse_bytes, count, reserved }
    MergeParams { first, others, result, sinks, parts, heads, rows, to_two, from_two }
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
