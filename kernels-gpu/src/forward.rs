//! Forward attention: every warp copies, every warp computes.
use crate::entries::Run;
use crate::mainloop::{KvStage, Share, Stages, attend};
use crate::mask::MaskFn;
use crate::tensors::TensorTile;
use crate::work::TileNumber;
use core::ops::ControlFlow;
use spec::{Forward, Fwd, FwdParams, Kernel, Persistent, Sm80};
use tile::copy::TileSource;
use tile::copy::{CpAsync, TileWalk, Walk};
use tile::mma::{Mma, Resident};
use tile::pipeline::{Pipeline, Ring, Unfilled};
use tile::shared::SharedTile;
use tile::{Block, Smem};

/// The whole block copies.
pub type ByBlock<C> = CpAsync<Block<C>>;

/// Where Q goes.
pub type QPlace<C, E, const M: usize, const D: usize> = Unfilled<SharedTile<E, M, D>, ByBlock<C>>;

/// Where keys and values go.
type KvRing<C, E, const N: usize, const D: usize, const KV_WARPS: usize, const STAGES: usize> =
    Ring<KvStage<E, N, D, KV_WARPS>, STAGES, ByBlock<C>>;

/// Stages that the block refills itself, one ahead of their use for each stage but one.
struct SelfFed<
    'b,
    C: Kernel,
    E: Mma,
    Tiles: TileWalk<E, N, D, Block<C>>,
    const N: usize,
    const D: usize,
    const KV_WARPS: usize,
    const STAGES: usize,
> {
    kv: Pipeline<KvStage<E, N, D, KV_WARPS>, STAGES, ByBlock<C>>,
    k: Tiles,
    v: Tiles,
    /// The last block taken.
    start: u32,
    block: &'b mut Block<C>,
}

impl<
    C: Kernel,
    E: Mma,
    Tiles: TileWalk<E, N, D, Block<C>>,
    const N: usize,
    const D: usize,
    const KV_WARPS: usize,
    const STAGES: usize,
> Stages<KvStage<E, N, D, KV_WARPS>> for SelfFed<'_, C, E, Tiles, N, D, KV_WARPS, STAGES>
{
    #[inline(always)]
    fn next(&mut self, n: u32, read: impl FnOnce(&KvStage<E, N, D, KV_WARPS>)) {
        let SelfFed { kv, k, v, start, block } = self;
        read(&kv.advance(block, |slot, block| {
            if STAGES == 1 {
                // There was no prologue: the tile that may be cut is copied here.
                slot.k.copy_edge(k, block);
                slot.v.copy_edge(v, block);
            } else if n + 1 >= *start + STAGES as u32 {
                slot.k.copy_whole(k, block);
                slot.v.copy_whole(v, block);
            }
        }))
    }
}

/// A kernel whose blocks do one tile of queries, whichever they are told.
pub trait Tile: Forward<Isa = Sm80> {
    /// Does `tile`, under a contract `C` of as many threads and as much shared memory.
    fn tile<C: Kernel, P: TensorTile>(p: &FwdParams, tile: &P, block: &mut Block<C>, smem: Smem<C>);
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
> Tile for Fwd<E, Mask, M, W, KV_WARPS, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(p: &FwdParams, tile: &P, block: &mut Block<C>, smem: Smem<C>) {
        let (mine, team) = block.split_groups::<M, W, KV_WARPS>();
        let tensors = tile.tensors::<E, D>(p, M as u32 * 16);
        let rows = tensors.rows;
        let range = tile.share(Mask::blocks(&rows, (N * KV_WARPS) as u32 * 16));
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            return tile.store_nothing_seen::<_, C, M, D>(&tensors, block);
        }

        // Prologue: Q, then the last STAGES - 1 key/value blocks, all in flight.
        let (q, ring): (QPlace<C, E, M, D>, KvRing<C, E, N, D, KV_WARPS, STAGES>) = smem.split();
        let mut k = tensors.k.walk(range.end * KV_WARPS as u32 - 1, block);
        let mut v = tensors.v.walk(range.end * KV_WARPS as u32 - 1, block);
        let q = q.fill(|slot| slot.copy_edge(&mut Walk::down(tensors.q, tensors.m_block, block), block));
        let kv = ring.prologue(q, |i, slot| {
            if i < range.end - range.start {
                slot.k.copy_edge(&mut k, block);
                slot.v.copy_edge(&mut v, block);
            }
        });
        let (q_tile, kv) = kv.land(block);
        let q_frag = Resident::<_, M, W, D, Q_STEPS>::load(&q_tile, mine);

        // Mainloop.
        let mut stages = SelfFed { kv, k, v, start: range.start, block };
        let share = Share { rows, range, mine, team };
        let (mut acc_o, mut softmax) =
            attend::<E, Mask, M, W, KV_WARPS, N, D, Q_STEPS>(p, share, &q_frag, &mut stages);

        // Epilogue: the first team gathers what the others saw.
        if KV_WARPS > 1 {
            let SelfFed { kv, block, .. } = stages;
            let Some(left) = kv.reclaim(block).exchange((acc_o, softmax.state()), mine, team, block) else {
                return;
            };
            for theirs in left.others() {
                let (mine, scale) = softmax.merge(theirs.beside());
                theirs.add_scaled(&mut acc_o, &mine, &scale);
            }
        }
        tile.store(p, &tensors, acc_o, &softmax, q_tile.spent(), mine);
    }
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
> Run for Fwd<E, Mask, M, W, KV_WARPS, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        Self::tile(&p, &TileNumber(block.index()), &mut block, smem)
    }
}

impl<K: Tile<Params = FwdParams>> Run for Persistent<K> {
    /// Tile after tile, as many blocks apart as there are.
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        let tiles = (block.index()..p.order.tiles).step_by(block.count() as usize);
        smem.rounds(&mut block, tiles, &p, (), |p, (), index, block, smem| {
            K::tile(p, &TileNumber(index), block, smem);
            ControlFlow::Continue(())
        })
    }
}
