//! The kernel that finds the largest score of each query head.
use crate::*;

/// Finds the maximum of each query head's rows, over all batches. A block has a head.
pub struct HeadMaxima;

/// Warps of a [`HeadMaxima`] block.
pub const MAXIMA_WARPS: usize = 8;

/// Parameters of [`HeadMaxima`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadMaximaParams {
    /// The maxima of rows, as the bits of f32. All rows of all batches and heads exist.
    pub rows: Integers,
    /// The rows that belong to sequences. Other rows have no maximum, and the kernel reads none of them.
    pub queries: CuSeqlens,
    /// Number of elements from one batch to the next, and from one head to the next.
    pub strides: [u32; 2],
    /// Number of batches; 1 if queries are varlen.
    pub batches: u32,
    /// Padding: 0.
    pub reserved: u32,
    /// The maxima of heads, one f32 per query head, which the kernel writes.
    pub heads: Integers,
}
contract::no_padding! { HeadMaximaParams { rows, queries, strides, batches, reserved, heads } }

impl Kernel for HeadMaxima {
    type Params = HeadMaximaParams;
    const THREADS: u32 = MAXIMA_WARPS as u32 * 32;
    /// A maximum per warp.
    const SMEM_BYTES: usize = MAXIMA_WARPS * 4;
    fn grid(params: &HeadMaximaParams) -> [u32; 3] {
        [params.heads.count(), 1, 1]
    }
}

impl Line for HeadMaxima {
    type Info = ExtraInfo;
    const INFO: ExtraInfo =
        ExtraInfo { contract: Contract::of::<Self>(""), what: "the largest score of each query head" };
}
