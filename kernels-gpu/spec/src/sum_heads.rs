//! The sums of gradients of keys and values whose query heads several blocks share: [`BwdSumHeads`].
use crate::*;
use core::marker::PhantomData;

/// Adds the gradients of each key head's shares, in the order of the shares. Each thread has eight columns.
pub struct BwdSumHeads<E>(PhantomData<E>);

/// Parameters of a [`BwdSumHeads`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdSumHeadsParams {
    /// The shares of the gradients of keys and of values. Share `s` of key head `h` is head `h * shares + s`.
    pub from: [Tensor; 2],
    /// The gradients of the keys and of the values.
    pub to: [Tensor; 2],
    /// The distribution of all rows' key heads over threads, row by row.
    pub parts: RowParts,
    /// Key heads per row.
    pub heads: FastDiv,
    /// Rows per batch.
    pub rows: FastDiv,
    /// Shares per key head.
    pub shares: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! { BwdSumHeadsParams { from, to, parts, heads, rows, shares, reserved } }

impl<E: Element> Kernel for BwdSumHeads<E> {
    type Params = BwdSumHeadsParams;
    const THREADS: u32 = 128;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 8;
    fn grid(params: &BwdSumHeadsParams) -> [u32; 3] {
        [params.parts.blocks(), 1, 1]
    }
}

impl<E: Element> Line for BwdSumHeads<E> {
    type Info = SumHeadsInfo;
    const INFO: SumHeadsInfo = SumHeadsInfo { contract: Contract::of::<Self>(""), dtype: E::DTYPE };
}

/// A compiled [`BwdSumHeads`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumHeadsInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of the gradients.
    pub dtype: DType,
}
