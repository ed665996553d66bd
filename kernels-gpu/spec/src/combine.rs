//! The combine kernel of split-KV: it merges the partial results of a work tile's splits. And every combine
//! kernel as a value.
use crate::*;
use core::marker::PhantomData;

/// Merges the splits of a [`Split`] kernel with dtype `E` and a head dim of `D` base tiles. A thread owns 8
/// columns of a row.
pub struct Combine<E, const D: usize>(PhantomData<E>);

impl<E: Element, const D: usize> Line for Combine<E, D> {
    type Info = CombineInfo;
    const INFO: CombineInfo = CombineInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        of: SplitKernels::Prefill,
    };
}

impl<E: Element, const D: usize> Kernel for Combine<E, D> {
    type Params = CombineParams;
    const THREADS: u32 = 128;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &CombineParams) -> [u32; 3] {
        <Self as Line>::INFO.grid(params)
    }
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

/// A compiled combine kernel as a value: a [`Combine`], [`DecodeCombine`] or [`FewCombine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of O.
    pub dtype: DType,
    /// Head dim of the kernels whose splits the kernel merges.
    pub head_dim: u32,
    /// The kernels whose splits the kernel merges.
    pub of: SplitKernels,
}

/// Kernels that split keys. Each kind has a combine kernel for each dtype and head dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitKernels {
    /// [`Split`] kernels, on work tiles.
    Prefill,
    /// Portable decode kernels.
    Decoding,
    /// Hopper's decode kernels. Their combine kernels are [`Dependent`].
    Seesaw,
    /// [`FewQueries`] kernels of mixed batches.
    Mixed,
}

impl CombineInfo {
    /// Whether the kernel merges the splits of an attention kernel.
    pub const fn finishes(&self, entry: &AttnInfo) -> bool {
        let of = match (entry.scheduler, entry.queries, entry.schedule) {
            (TileScheduler::Lengths, Queries::Mixed, _) => SplitKernels::Mixed,
            (TileScheduler::Lengths, _, Schedule::Seesaw) => SplitKernels::Seesaw,
            (TileScheduler::Lengths, ..) => SplitKernels::Decoding,
            _ => SplitKernels::Prefill,
        };
        let alike = self.dtype as u8 == entry.o_dtype as u8 && self.head_dim == entry.head_dim_v;
        entry.splits && alike && self.of as u8 == of as u8
    }

    /// Chunks of 8 columns per row, each of which one thread of a [`Combine`] kernel computes.
    pub const fn row_chunks(&self) -> u32 {
        self.head_dim / 8
    }

    /// The grid of a [`Combine`] kernel: one thread per chunk of all rows of all heads.
    pub const fn grid(&self, params: &CombineParams) -> [u32; 3] {
        let rows = params.partials.heads * params.partials.rows;
        [(rows * self.row_chunks()).div_ceil(self.contract.threads), 1, 1]
    }
}
