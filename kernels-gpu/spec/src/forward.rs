//! The forward family: its configurations and [`params`]. A configuration is a type; its numbers count 16x16
//! base tiles.
use crate::{
    AttnInfo, Contract, Element, FwdParams, Isa, IsaMarker, Kernel, Keys, Line, MaskMarker, Queries,
    Schedule, Sm80, Target, TileOrder, TileScheduler,
};
use core::marker::PhantomData;

pub mod params;

/// A kernel on tensors of batches, which others are made of: what those are told.
pub trait Forward: Kernel<Params: Scheduled> + Line<Info = AttnInfo> {
    /// Its instructions.
    type Isa: IsaMarker;
}

/// Parameters that say which thread block does which work tiles.
pub trait Scheduled: Copy {
    /// The work tiles.
    fn order(&self) -> &TileOrder;
    /// Blocks of the launch.
    fn blocks(&self) -> u32;
}

impl Scheduled for FwdParams {
    fn order(&self) -> &TileOrder {
        &self.order
    }
    fn blocks(&self) -> u32 {
        self.order.tiles
    }
}

/// Forward attention, one block of keys after the other. A thread block owns `M` query tiles; `KV_WARPS`
/// warps share each `W` of them, and each takes its own `N` key tiles of a stage (1: a warp sees every key;
/// more, where there are too few queries to fill the card). Head dim is `D` tiles; the first `Q_STEPS`
/// k-steps of Q stay in registers; `STAGES` stages.
pub struct Fwd<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
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
    const Q_STEPS: usize,
>(PhantomData<(E, Mask)>);

/// [`Fwd`] with one more warp that only copies: the others never wait for an address.
pub struct FwdSpecialised<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
>(PhantomData<(E, Mask)>);

/// Forward attention for head dims whose O is more than a warp's registers hold: two warps share each `W` of
/// `M` query tiles, each with `HALF` of the `D` head dim tiles, and the first `Q_STEPS` k-steps of its half
/// of Q in registers. A block's `N` tiles of keys and those of its values take turns.
pub struct FwdWide<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HALF: usize,
    const Q_STEPS: usize,
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
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Line for $config<E, Mask, $($c),*> {
            type Info = AttnInfo;
            const INFO: AttnInfo = AttnInfo {
                contract: Contract::of::<Self>(""),
                isa: Isa::Sm80,
                path: E::PATH,
                schedule: Schedule::$schedule,
                scheduler: TileScheduler::SingleTile,
                queries: Queries::Batched,
                keys: Keys::Batched,
                splits: false,
                dtype: E::DTYPE,
                kv_dtype: E::DTYPE,
                head_dim: D as u32 * 16,
                mask: Mask::KIND,
                tile_m: M as u32 * 16,
                tile_n: ($keys) as u32 * 16,
                stages: $stages as u32,
            };
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Forward for $config<E, Mask, $($c),*> {
            type Isa = Sm80;
        }
    };
}
forward!(
    Fwd<M, W, KV_WARPS, N, D, Q_STEPS, STAGES>, Sequential,
    stages STAGES, warps M / W * KV_WARPS, keys N * KV_WARPS, smem tiles M + STAGES * 2 * N * KV_WARPS
);
forward!(
    FwdOverlap<M, W, N, D, Q_STEPS>, Overlapped,
    stages 2, warps M / W, keys N, smem tiles M + N + 2 * 2 * N
);
forward!(
    FwdSpecialised<M, W, N, D, Q_STEPS, STAGES>, Specialised,
    stages STAGES, warps M / W + 1, keys N, smem tiles M + STAGES * 2 * N, bytes STAGES * HANDOVER_BYTES
);
forward!(
    FwdWide<M, W, N, D, HALF, Q_STEPS>, Sequential,
    stages 1, warps 2 * M / W, keys N, smem tiles 2 * N,
    bytes 2 * M * (N * SCORES_BYTES + (HALF - Q_STEPS) * tile_bytes::<E>())
);

/// Makes of kernel `K` another one, of the same threads and shared memory, with other parameters and blocks.
macro_rules! made_of {
    ($kernel:ident<$k:ident>: $params:ty, $grid:expr, { $($field:ident: $value:expr),* }) => {
        impl<$k: Forward> Kernel for $kernel<$k> {
            type Params = $params;
            const TARGET: Target = $k::TARGET;
            const THREADS: u32 = $k::THREADS;
            const SMEM_BYTES: usize = $k::SMEM_BYTES;
            const PARAM_ALIGN: u32 = $k::PARAM_ALIGN;
            const BOXES: &'static [[u32; 2]] = $k::BOXES;
            fn grid(params: &Self::Params) -> [u32; 3] {
                [($grid)(params), 1, 1]
            }
        }
        impl<$k: Forward> Line for $kernel<$k> {
            type Info = AttnInfo;
            const INFO: AttnInfo =
                AttnInfo { contract: Contract::of::<Self>(""), $($field: $value,)* ..$k::INFO };
        }
    };
}
pub(crate) use made_of;

made_of!(
    Persistent<K>: K::Params, |p: &K::Params| p.order().tiles.min(p.order().resident),
    { scheduler: TileScheduler::Persistent }
);
