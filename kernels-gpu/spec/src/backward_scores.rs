//! Backward kernels of what a caller adds to scores. [`BwdDbias`] computes the gradient of a bias. A block
//! has a tile of the bias, and adds the gradients of the scores that read it, in a fixed order. [`BwdTable`]
//! adds the gradients of scores to the entries of a table that the scores read. Each work tile leaves its own
//! sums, and the last work tile of a head adds those of all tiles in a fixed order. Both kernels compute the
//! scores again, as [`BwdDq`] does.
use crate::backward::backward;
use crate::forward::{oldest_with, tile_bytes};
use crate::*;
use core::marker::PhantomData;

/// The gradient of a table: what work tiles of `M` base tiles of queries, `W` per warp, add to its entries,
/// over stages of the queries with `N` base tiles of keys. A block has [`TABLE_ENTRIES`] entries, and several
/// blocks share a work tile if the table has more. `D` and `DV` are as in [`BwdDq`].
pub struct BwdTable<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const DV: usize = D,
>(PhantomData<(E, Mask)>);

/// The gradient of the mask's bias: a tile of `M` base tiles of queries, `W` per warp, and `N` of keys, over
/// the sequences and heads that share it. `D` and `DV` are as in [`BwdDq`].
pub struct BwdDbias<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const DV: usize = D,
>(PhantomData<(E, Mask)>);

/// Parameters of a [`BwdDbias`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdDbiasParams {
    /// The problem. `order` has its numbers of heads.
    pub problem: BwdParams,
    /// The gradient of the bias, with the bias' shape. The kernel writes each word of each row.
    pub dbias: BiasParams,
    /// The tiles.
    pub tiles: BiasTiles,
}

/// The tiles of a bias whose gradient a [`BwdDbias`] kernel computes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasTiles {
    /// Tiles of a row of tiles: the bias' keys in blocks.
    pub n_blocks: FastDiv,
    /// Rows of tiles: the bias' queries in blocks.
    pub m_blocks: FastDiv,
    /// Heads of the bias.
    pub heads: FastDiv,
    /// Query heads that share a head of the bias.
    pub shared_heads: FastDiv,
    /// Sequences of the bias.
    pub sequences: u32,
    /// Sequences times query heads that share a tile.
    pub shares: u32,
}

impl BiasTiles {
    /// The number of tiles.
    pub fn count(&self) -> u32 {
        self.n_blocks.get() * self.m_blocks.get() * self.heads.get() * self.sequences
    }
}

/// Entries of a [`BwdTable`] block. Each lane has a sum of each entry, which takes 8 KB per warp.
pub const TABLE_ENTRIES: usize = 64;

/// Parameters of a [`BwdTable`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdTableParams {
    /// The problem.
    pub problem: BwdParams,
    /// The sums of each work tile, in the order of the work tiles.
    pub partials: TilePartials,
    /// The gradient of the table, f32 `[query head][entry]`.
    pub dtable: Integers,
    /// A counter per query head and group of entries. An earlier launch has cleared them.
    pub counters: Counters,
    /// Blocks per work tile: the table's entries per head in groups of [`TABLE_ENTRIES`].
    pub groups: FastDiv,
    /// Work tiles per head and batch.
    pub m_blocks: FastDiv,
    /// Batches; 1 if the tensors are varlen.
    pub batches: u32,
    /// Padding: 0.
    pub reserved: u32,
}

contract::no_padding! {
    BwdDbiasParams { problem, dbias, tiles }
    BiasTiles { n_blocks, m_blocks, heads, shared_heads, sequences, shares }
    BwdTableParams { problem, partials, dtable, counters, groups, m_blocks, batches, reserved }
}

backward!(
    BwdTable<M, W, N, D, STAGES, DV>: BwdTableParams, Table, Sequential,
    threads M / W * 32, rows of a stage N, stages STAGES, smem tiles STAGES * (M + N),
    bytes TABLE_ENTRIES * (M / W) * 128,
    blocks |p| p.problem.order.tiles * p.groups.get()
);
backward!(
    BwdDbias<M, W, N, D, DV>: BwdDbiasParams, Dbias, Sequential,
    threads M / W * 32, rows of a stage N, stages 1, smem tiles M + N, bytes 0,
    blocks |p| p.tiles.count()
);
