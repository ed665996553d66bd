//! The append family: rows of new tokens go to their places in a cache (`reshape_and_cache`).
use crate::*;
use core::marker::PhantomData;

/// Puts rows of 16-bit elements into a cache of the same type, bit by bit.
pub struct AppendCopy;

/// Divides rows of `E` by the cache's scales and rounds them to `C`.
pub struct Append<E, C>(PhantomData<(E, C)>);

/// Columns that a thread moves of one row of keys, and of one of values.
pub const APPEND_COLUMNS: usize = 8;

impl Line for AppendCopy {
    type Info = AppendInfo;
    const INFO: AppendInfo = AppendInfo { contract: Contract::of::<Self>(""), rounds: None };
}

impl<E: Element, C: Element> Line for Append<E, C> {
    type Info = AppendInfo;
    const INFO: AppendInfo =
        AppendInfo { contract: Contract::of::<Self>(""), rounds: Some([E::DTYPE, C::DTYPE]) };
}

impl Kernel for AppendCopy {
    type Params = AppendParams;
    const THREADS: u32 = 256;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &AppendParams) -> [u32; 3] {
        [params.parts.blocks(), 1, 1]
    }
}

impl<E: Element, C: Element> Kernel for Append<E, C> {
    type Params = AppendParams;
    const TARGET: Target = C::TARGET;
    const THREADS: u32 = 256;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &AppendParams) -> [u32; 3] {
        [params.parts.blocks(), 1, 1]
    }
}

/// What an append kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendParams {
    /// Keys of the new tokens: rows of one batch.
    pub k: Tensor,
    /// Their values.
    pub v: Tensor,
    /// Where they go. It has no table.
    pub cache: Cache,
    /// The place of each token.
    pub slots: Slots,
    /// What the cache's numbers of keys and of values are multiplied by to be the tokens'.
    pub scales: [PerHead; 2],
    /// Heads of all tokens, head by head of a token, dealt out to threads.
    pub parts: RowParts,
    /// Heads of a token.
    pub heads: FastDiv,
    /// Zero.
    pub reserved: u32,
}

/// A compiled append kernel as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// The types that it rounds from and to; `None` where it copies 16-bit elements as they are.
    pub rounds: Option<[DType; 2]>,
}
