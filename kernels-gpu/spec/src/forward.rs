//! Portable forward kernels: configurations and [`params`]. A configuration is a type; its numbers count
//! 16x16 base tiles.
use crate::{
    AttnInfo, AttnKernel, CacheScales, Contract, Element, FwdParams, Isa, IsaMarker, Kernel, Keys, Line,
    MaskMarker, Pass, Queries, Schedule, Scheduled, Sm80, Target, TileOrder, TileScheduler,
};
use core::marker::PhantomData;

pub mod params;

/// A kernel for dense tensors. Wrappers turn a configuration into varlen, paged and split-KV kernels.
pub trait Forward: Kernel<Params: Scheduled> + AttnKernel {
    /// The scales in the parameters of kernels on a KV cache.
    type Scales: CacheScales;
    /// The parameters of [`crate::Varlen`] kernels.
    type OnVarlen: Scheduled;
}

impl Scheduled for FwdParams {
    fn order(&self) -> &TileOrder {
        &self.order
    }
    fn blocks(&self) -> u32 {
        self.order.tiles
    }
}

/// Forward attention that takes one block of keys after the other. A thread block owns `M` query tiles.
/// `KV_WARPS` warps share every `W` of these tiles, and each of these warps takes its own `N` key tiles of a
/// stage. (With 1, a warp sees every key; more warps help if too few queries fill the card.) The head dim has
/// `D` base tiles; the first `Q_STEPS` k-steps of Q stay in registers; there are `STAGES` stages. V and O
/// have `DV` base tiles of columns.
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
    const DV: usize = D,
>(PhantomData<(E, Mask)>);

/// Overlapped forward attention: the kernel computes the scores of the next key block during this block's
/// exponentials. The kernel has two stages, and a warp holds two score tiles in registers.
pub struct FwdOverlap<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
>(PhantomData<(E, Mask)>);

/// [`Fwd`] with a producer warp. Only the producer warp computes addresses of keys and values.
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

/// Forward attention for head dims whose O exceeds a warp's registers. Two warps share every `W` of `M` query
/// tiles. Each of them has `HALF` of the `D` base tiles of the head dim, and holds the first `HELD` k-steps
/// of its half of Q in registers. The stages alternate between `N` base tiles of keys and `N` base tiles of
/// values.
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

/// Statistics of the scores of each row, instead of O and LSE: the entropy of the row's probabilities, in the
/// place of the LSE, and the row's largest score. The kernel reads no values, counts no sinks, and takes one
/// block of `N` base tiles of keys after the other. The other numbers are those of [`Fwd`].
pub struct Statistics<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
>(PhantomData<(E, Mask)>);

/// Persistent kernel `K`: the grid fills the GPU once, and each block takes work tile after work tile.
pub struct Persistent<K>(PhantomData<K>);

/// Bytes of one base tile.
pub(crate) const fn tile_bytes<E: Element>() -> usize {
    256 * E::BYTES
}

/// The GPU generations on which a block may have this number of bytes of shared memory. The A100 has up to
/// 163 KiB.
pub(crate) const fn oldest_with(smem_bytes: usize) -> Target {
    Target::From(if smem_bytes <= 163 << 10 { 80 } else { 90 })
}

/// Bytes of a stage's two mbarriers, *full* and *empty*, of 8 bytes each.
const HANDOVER_BYTES: usize = 16;

/// Bytes that one base tile of scores takes in the exchange between warps.
const SCORES_BYTES: usize = 1024;

macro_rules! forward {
    ($config:ident<$($c:ident),*>, $pass:ident $schedule:ident, values $dv:ident, stages $stages:expr,
        warps $warps:expr, keys $keys:expr, smem tiles $tiles:expr $(, bytes $bytes:expr)?) => {
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
                pass: Pass::$pass,
                isa: Isa::Sm80,
                path: E::PATH,
                schedule: Schedule::$schedule,
                scheduler: TileScheduler::SingleTile,
                queries: Queries::Batched,
                keys: Keys::Batched,
                splits: false,
                dtype: E::DTYPE,
                kv_dtype: E::DTYPE,
                o_dtype: E::DTYPE,
                grad_dtype: None,
                head_dim: D as u32 * 16,
                head_dim_v: $dv as u32 * 16,
                mask: Mask::KIND,
                scores: Mask::SCORES,
                tile_m: M as u32 * 16,
                tile_n: ($keys) as u32 * 16,
                stages: $stages as u32,
            };
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> AttnKernel for $config<E, Mask, $($c),*> {
            type Isa = Sm80;
            type Mask = Mask;
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Forward for $config<E, Mask, $($c),*> {
            type Scales = ();
            type OnVarlen = <Sm80 as IsaMarker>::OnVarlen;
        }
    };
}
forward!(
    Fwd<M, W, KV_WARPS, N, D, Q_STEPS, STAGES, DV>, Forward Sequential, values DV,
    stages STAGES, warps M / W * KV_WARPS, keys N * KV_WARPS, smem tiles M,
    bytes tile_bytes::<E>() * STAGES * N * KV_WARPS * (D + DV)
);
forward!(
    FwdOverlap<M, W, N, D, Q_STEPS>, Forward Overlapped, values D,
    stages 2, warps M / W, keys N, smem tiles M + N + 2 * 2 * N
);
forward!(
    FwdSpecialised<M, W, N, D, Q_STEPS, STAGES>, Forward Specialised, values D,
    stages STAGES, warps M / W + 1, keys N, smem tiles M + STAGES * 2 * N, bytes STAGES * HANDOVER_BYTES
);
forward!(
    FwdWide<M, W, N, D, HALF, Q_STEPS>, Forward Sequential, values D,
    stages 1, warps 2 * M / W, keys N, smem tiles 2 * N,
    bytes 2 * M * (N * SCORES_BYTES + (HALF - Q_STEPS) * tile_bytes::<E>())
);
forward!(
    Statistics<M, W, N, D, Q_STEPS, STAGES>, Statistics Sequential, values D,
    stages STAGES, warps M / W, keys N, smem tiles M + STAGES * N
);

/// Makes another kernel from kernel `K`: with the threads and the shared memory of `K`, but with other
/// parameters and another grid.
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
        impl<$k: Forward> AttnKernel for $kernel<$k> {
            type Isa = $k::Isa;
            type Mask = $k::Mask;
        }
    };
}
pub(crate) use made_of;

made_of!(
    Persistent<K>: K::Params, |p: &K::Params| p.order().tiles.min(p.order().resident),
    { scheduler: TileScheduler::Persistent }
);
