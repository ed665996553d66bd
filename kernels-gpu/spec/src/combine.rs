//! The second kernel of a split forward: it merges what the blocks of a tile have left.
use crate::*;
use core::marker::PhantomData;

/// Merges the slices of a [`Split`] kernel of element type `E` and `D` head dim tiles. A thread owns 8 columns of a row.
pub struct Combine<E, const D: usize>(PhantomData<E>);

impl<E: Element, const D: usize> Combine<E, D> {
    /// Chunks of 8 columns that make up a row: a thread's each.
    pub const ROW_CHUNKS: u32 = D as u32 * 2;
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

/// As many threads as there are chunks in all rows of all heads.
fn grid(params: &CombineParams, row_chunks: u32, threads: u32) -> [u32; 3] {
    let rows = params.partials.heads * params.partials.rows;
    [(rows * row_chunks).div_ceil(threads), 1, 1]
}

/// A compiled [`Combine`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineInfo {
    /// How it is compiled.
    pub kernel: KernelInfo,
    /// Element type of O.
    pub dtype: DType,
    /// Head dim of the [`Split`] kernels whose slices it merges.
    pub head_dim: u32,
    /// Chunks that make up a row: what the grid follows from.
    pub row_chunks: u32,
}

impl CombineInfo {
    /// Blocks of the launch, as the configuration's type computes them.
    pub fn grid(&self, params: &CombineParams) -> [u32; 3] {
        grid(params, self.row_chunks, self.kernel.threads)
    }
}

/// Expands `$emit!` with every [`Combine`] that is compiled.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_combine { ($emit:ident) => { $emit! {
    combine_f16_d64: Combine<F16, 4>;
    combine_bf16_d64: Combine<Bf16, 4>;
    combine_f16_d128: Combine<F16, 8>;
    combine_bf16_d128: Combine<Bf16, 8>;
} } }

macro_rules! table {
    ($($symbol:ident: Combine<$e:ident, $d:literal>;)*) => {
        /// Every compiled [`Combine`].
        pub const COMBINES: &[CombineInfo] = &[$(CombineInfo {
            kernel: KernelInfo::of::<Combine<$e, $d>>(stringify!($symbol)),
            dtype: <$e as Element>::DTYPE,
            head_dim: $d * 16,
            row_chunks: Combine::<$e, $d>::ROW_CHUNKS,
        }),*];
    };
}
for_each_combine!(table);
