//! The combine kernel of split-KV: it merges the partial results of a work tile's splits.
use crate::*;
use core::marker::PhantomData;

/// Merges the splits of a [`Split`] kernel with dtype `E` and a head dim of `D` base tiles. A thread owns 8
/// columns of a row.
pub struct Combine<E, const D: usize>(PhantomData<E>);

impl<E: Element, const D: usize> Combine<E, D> {
    /// Chunks of 8 columns per row, each of which one thread computes.
    pub const ROW_CHUNKS: u32 = D as u32 * 2;
}

impl<E: Element, const D: usize> Line for Combine<E, D> {
    type Info = CombineInfo;
    const INFO: CombineInfo = CombineInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        row_chunks: Self::ROW_CHUNKS,
    };
}

impl<E: Element, const D: usize> Kernel for Combine<E, D> {
    type Params = CombineParams;
    const THREADS: u32 = 128;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &CombineParams) -> [u32; 3] {
        grid(params, Self::ROW_CHUNKS, Self::THREADS)
    }
}

/// The grid: one thread per chunk of all rows of all heads.
fn grid(params: &CombineParams, row_chunks: u32, threads: u32) -> [u32; 3] {
    let rows = params.partials.heads * params.partials.rows;
    [(rows * row_chunks).div_ceil(threads), 1, 1]
}

/// Parameters of a [`Combine`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineParams {
    /// The partial results of the splits.
    pub partials: Partials,
    /// The output tensor.
    pub o: Tensor,
    /// LSE of each row.
    pub lse: Lse,
    /// Query heads per batch.
    pub heads: FastDiv,
    /// Queries per head.
    pub rows: FastDiv,
}
contract::no_padding! {
    CombineParams { partials, o, lse, heads, rows }
}

/// A compiled [`Combine`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of O.
    pub dtype: DType,
    /// Head dim of the [`Split`] kernels whose splits the kernel merges.
    pub head_dim: u32,
    /// Chunks of 8 columns per row; they determine the grid.
    pub row_chunks: u32,
}

impl CombineInfo {
    /// The grid, as the configuration's type computes it.
    pub fn grid(&self, params: &CombineParams) -> [u32; 3] {
        grid(params, self.row_chunks, self.contract.threads)
    }
}
