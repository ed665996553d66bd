//! Backward kernels of what a caller adds to scores. [`BwdTable`] adds the gradients of scores to the entries
//! of a table that the scores read. Each work tile leaves its own sums, and the last work tile of a head adds
//! those of all tiles in a fixed order. The kernel computes the scores again, as [`BwdDq`] does.
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
    BwdTableParams { problem, partials, dtable, counters, groups, m_blocks, batches, reserved }
}

backward!(
    BwdTable<M, W, N, D, STAGES, DV>: BwdTableParams, Table, Sequential,
    threads M / W * 32, rows of a stage N, smem tiles STAGES * (M + N),
    bytes TABLE_ENTRIES * (M / W) * 128,
    blocks |p| p.problem.order.tiles * p.groups.get()
);
