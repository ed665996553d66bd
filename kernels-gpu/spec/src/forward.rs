//! The forward family: its configurations, [`params`] and table ([`entries`], [`lineage`]). A configuration
//! is a type; its numbers count 16x16 base tiles.
use crate::{DType, Element, FwdParams, Kernel, Path, Target};
use core::marker::PhantomData;

pub mod entries;
pub mod entry;
pub mod lineage;
pub mod params;

/// Which keys a query sees, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// All of them.
    Full,
    /// Those at or before it.
    Causal,
    /// A window on either side, each side also unbounded, softcap, and ALiBi slopes.
    Local,
}
impl MaskKind {
    /// Its name in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Full => "full",
            MaskKind::Causal => "causal",
            MaskKind::Local => "local",
        }
    }
}

/// Which keys a query sees, by type.
pub trait MaskMarker: Copy {
    /// The same as a value.
    const KIND: MaskKind;
}
/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full;
/// Query `i` sees keys `0..=i + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Causal;
/// The general entry: [`crate::Window`] on both sides, softcap, and ALiBi slopes.
#[derive(Clone, Copy, Debug)]
pub struct Local;
impl MaskMarker for Full {
    const KIND: MaskKind = MaskKind::Full;
}
impl MaskMarker for Causal {
    const KIND: MaskKind = MaskKind::Causal;
}
impl MaskMarker for Local {
    const KIND: MaskKind = MaskKind::Local;
}

/// Order of work in the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// S(n), softmax(n), O += P(n) V(n).
    Sequential,
    /// S(n - 1) is under way while P(n) is exponentiated.
    Overlapped,
    /// As sequential, and a warp of its own copies.
    Specialised,
    /// Warpgroups take turns at issuing products, each S(n) together with O += P(n + 1) V(n + 1), and another
    /// one copies.
    InTurns,
}
impl Schedule {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Schedule::Sequential => "sequential",
            Schedule::Overlapped => "overlapped",
            Schedule::Specialised => "specialised",
            Schedule::InTurns => "in turns",
        }
    }
}

/// A forward kernel's numbers, as the host sees them.
pub trait Forward: Kernel {
    /// Element type.
    const DTYPE: DType;
    /// Largest head dim.
    const HEAD_DIM: u32;
    /// Mask.
    const MASK: MaskKind;
    /// Order of work.
    const SCHEDULE: Schedule;
    /// Queries of a block.
    const TILE_M: u32;
    /// Keys of a stage.
    const TILE_N: u32;
    /// Key/value stages.
    const STAGES: u32;
    /// What multiplies tiles.
    const PATH: Path;
    /// Which blocks there are.
    const GRID: Grid;
}

/// Which blocks a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grid {
    /// One for each tile of queries.
    OneTileABlock,
    /// As many as the card holds at once.
    Persistent,
    /// Several for each tile, each with its slice of the keys; [`crate::Combine`] merges what they leave in a
    /// workspace.
    Split,
    /// One for each tile that some packed sequence may have.
    Packed,
    /// As many as the card holds at once, each with the tiles of its [`crate::TileRounds`].
    Rounds,
    /// The same of tiles that some packed sequence may have.
    PackedRounds,
    /// As many as the card holds at once, each with slices of the keys of tiles; [`crate::Combine`] merges
    /// what they leave in a workspace.
    Slices,
}

impl Grid {
    /// Whether blocks find packed sequences.
    pub const fn packs(self) -> bool {
        matches!(self, Grid::Packed | Grid::PackedRounds)
    }

    /// Whether a copy engine moves tensors, by their maps.
    pub const fn has_maps(self) -> bool {
        matches!(self, Grid::Rounds | Grid::PackedRounds | Grid::Slices)
    }
}

/// Forward attention, one block of keys after the other. A thread block owns `M` query tiles; `KW` warps
/// share each `W` of them, and each takes its own `N` key tiles of a stage (1: a warp sees every key; more,
/// where there are too few queries to fill the card). Head dim is `D` tiles; the first `HELD` k-steps of Q
/// stay in registers; `STAGES` stages.
pub struct Fwd<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const KW: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
>(PhantomData<(E, Mask)>);

/// The same with the scores of the next block under way while this block's exponentials are taken. Two
/// stages, and registers for two score tiles.
pub struct FwdOverlap<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
>(PhantomData<(E, Mask)>);

/// [`Fwd`] with one more warp that only copies: the others never wait for an address.
pub struct FwdSpecialised<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
>(PhantomData<(E, Mask)>);

/// Forward attention for head dims whose O is more than a warp's registers hold: two warps share each `W` of
/// `M` query tiles, each with `HALF` of the `D` head dim tiles, and the first `HELD` k-steps of its half of Q
/// in registers. A block's `N` tiles of keys and those of its values take turns.
pub struct FwdWide<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HALF: usize,
    const HELD: usize,
>(PhantomData<(E, Mask)>);

/// Kernel `K` with as many blocks as the card holds at once, each of which does tile after tile.
pub struct Persistent<K>(PhantomData<K>);

/// Bytes of one base tile.
const fn tile_bytes<E: Element>() -> usize {
    256 * E::BYTES
}

/// GPUs from the oldest on that has so much shared memory for a block: up to 163 KiB the A100 has.
const fn oldest_with(smem_bytes: usize) -> Target {
    Target::From(if smem_bytes <= 163 << 10 { 80 } else { 90 })
}

/// Bytes of the barriers that hand a stage from warp to warp: two of 8, *full* and *empty*.
const HANDOVER_BYTES: usize = 16;

/// Bytes of the scores of one base tile, as warps leave them for each other.
const SCORES_BYTES: usize = 1024;

macro_rules! forward {
    ($config:ident<$($c:ident),*>, $schedule:ident, stages $stages:expr, warps $warps:expr, keys $keys:expr,
        smem tiles $tiles:expr $(, bytes $bytes:expr)?) => {
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Kernel for $config<E, Mask, $($c),*> {
            type Params = FwdParams;
            const TARGET: Target = oldest_with(Self::SMEM_BYTES);
            const THREADS: u32 = {
                assert!(M % W == 0, "the warps' row tiles must make up the block's");
                ($warps) as u32 * 32
            };
            const SMEM_BYTES: usize = tile_bytes::<E>() * D * ($tiles) $(+ $bytes)?;
            fn grid(params: &FwdParams) -> [u32; 3] {
                [params.order.tiles, 1, 1]
            }
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Forward for $config<E, Mask, $($c),*> {
            const DTYPE: DType = E::DTYPE;
            const HEAD_DIM: u32 = D as u32 * 16;
            const MASK: MaskKind = Mask::KIND;
            const SCHEDULE: Schedule = Schedule::$schedule;
            const TILE_M: u32 = M as u32 * 16;
            const TILE_N: u32 = ($keys) as u32 * 16;
            const STAGES: u32 = $stages as u32;
            const PATH: Path = E::PATH;
            const GRID: Grid = Grid::OneTileABlock;
        }
    };
}
forward!(
    Fwd<M, W, KW, N, D, HELD, STAGES>, Sequential,
    stages STAGES, warps M / W * KW, keys N * KW, smem tiles M + STAGES * 2 * N * KW
);
forward!(
    FwdOverlap<M, W, N, D, HELD>, Overlapped,
    stages 2, warps M / W, keys N, smem tiles M + N + 2 * 2 * N
);
forward!(
    FwdSpecialised<M, W, N, D, HELD, STAGES>, Specialised,
    stages STAGES, warps M / W + 1, keys N, smem tiles M + STAGES * 2 * N, bytes STAGES * HANDOVER_BYTES
);
forward!(
    FwdWide<M, W, N, D, HALF, HELD>, Sequential,
    stages 1, warps 2 * M / W, keys N, smem tiles 2 * N,
    bytes 2 * M * (N * SCORES_BYTES + (HALF - HELD) * tile_bytes::<E>())
);

impl<K: Forward> Kernel for Persistent<K> {
    type Params = FwdParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    fn grid(params: &FwdParams) -> [u32; 3] {
        [params.order.tiles.min(params.order.resident), 1, 1]
    }
}
macro_rules! forward_as {
    ($($wrapper:ident: $grid:ident;)*) => {
        $(impl<K: Forward> Forward for $wrapper<K> {
            const DTYPE: DType = K::DTYPE;
            const HEAD_DIM: u32 = K::HEAD_DIM;
            const MASK: MaskKind = K::MASK;
            const SCHEDULE: Schedule = K::SCHEDULE;
            const TILE_M: u32 = K::TILE_M;
            const TILE_N: u32 = K::TILE_N;
            const STAGES: u32 = K::STAGES;
            const PATH: Path = K::PATH;
            const GRID: Grid = Grid::$grid;
        })*
    };
}
pub(crate) use forward_as;
forward_as! { Persistent: Persistent; }
