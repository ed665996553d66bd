//! Launch contracts and a stage for programs on typed tiles that must not compile. The programs are in
//! `tests/compile_fail`.
use contract::{F16, Kernel};
use tile::Block;
use tile::copy::CpAsync;
use tile::group::Warpgroup;
use tile::pipeline::{Consumer, Pipeline, Ring, StageGuard, Unfilled};
use tile::shared::{SharedTile, SharedTiles};
use tile::tma::Tma;

/// A contract of any threads and bytes of shared memory.
pub struct Contract<const THREADS: u32, const BYTES: usize>;

impl<const THREADS: u32, const BYTES: usize> Kernel for Contract<THREADS, BYTES> {
    type Params = ();
    const THREADS: u32 = THREADS;
    const SMEM_BYTES: usize = BYTES;
    fn grid((): &()) -> [u32; 3] {
        [1; 3]
    }
}

/// 128 threads; shared memory for a tile of 8x4 base tiles and two stages.
pub type K = Contract<128, { (8 * 4 + 2 * 2 * 4 * 4) * 512 }>;

tile::shared_layout! {
    /// Two tiles that form one stage.
    Stage / StageSlot<E, N, D> { k: SharedTile<E, N, D>, v: SharedTile<E, N, D> }
}

/// Stages that the block fills.
pub type Stages<const S: usize> = Ring<Stage<F16, 4, 4>, S, CpAsync<Block<K>>>;
/// A pipeline with these stages.
pub type Running = Pipeline<Stage<F16, 4, 4>, 2, CpAsync<Block<K>>>;
/// A place for Q.
pub type Q = Unfilled<SharedTile<F16, 8, 4>, CpAsync<Block<K>>>;

/// One of two consumer warpgroups.
pub type Group = Warpgroup<2>;
/// The two warpgroups' rows of Q, kept for several products.
pub type GuardedQ<'c> = StageGuard<'c, SharedTiles<F16, 4, 8, 2>>;
/// Stages of keys, or of values, that TMA fills.
pub type TmaStages = Consumer<SharedTile<F16, 8, 8>, 2, Tma>;
