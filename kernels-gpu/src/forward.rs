//! Forward attention: every warp copies, every warp computes.
use crate::entries::Run;
use crate::mainloop::{KvStage, Share, Stages, attend};
use crate::mask::MaskFn;
use crate::tensors::{Portion, TileTensors, Whole};
use spec::{Forward, Fwd, FwdParams, Kernel, Persistent};
use tile::{Block, Mma, Pipeline, Ready, Resident, Ring, RowSum, RowVec, SharedTile, Smem, Unfilled, Walk};

/// Stages that the block refills itself, one ahead of their use for each stage but one.
struct SelfFed<'b, C, E: Mma, const N: usize, const D: usize, const KW: usize, const STAGES: usize> {
    kv: Pipeline<KvStage<E, N, D, KW>, STAGES>,
    k: Walk<E, N, D>,
    v: Walk<E, N, D>,
    /// The last block taken.
    start: u32,
    block: &'b mut Block<C>,
}

impl<C: Kernel, E: Mma, const N: usize, const D: usize, const KW: usize, const STAGES: usize>
    Stages<KvStage<E, N, D, KW>> for SelfFed<'_, C, E, N, D, KW, STAGES>
{
    type Stage<'a>
        = Ready<'a, KvStage<E, N, D, KW>>
    where
        Self: 'a;
    #[inline(always)]
    fn next(&mut self, n: u32) -> Self::Stage<'_> {
        let SelfFed { kv, k, v, start, block } = self;
        kv.advance(block, |slot, block| {
            if STAGES == 1 {
                // There was no prologue: the tile that may be cut is copied here.
                slot.k.copy_edge(k, block);
                slot.v.copy_edge(v, block);
            } else if n + 1 >= *start + STAGES as u32 {
                slot.k.copy_whole(k, block);
                slot.v.copy_whole(v, block);
            }
        })
    }
}

/// A kernel whose blocks do one tile of queries, whichever they are told.
pub trait Tile: Forward {
    /// Does `portion` of the tile that is `index`-th in order, under a contract `C` of as many threads and as much shared memory.
    fn tile<C: Kernel>(p: &FwdParams, index: u32, portion: &impl Portion, block: &mut Block<C>, smem: Smem<C>);
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const KW: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
> Tile for Fwd<E, Mask, M, W, KW, N, D, HELD, STAGES>
{
    #[inline(always)]
    fn tile<C: Kernel>(p: &FwdParams, index: u32, portion: &impl Portion, block: &mut Block<C>, smem: Smem<C>) {
        let (warp, part) = block.warp().team((M / W) as u32, KW as u32);
        let tensors = TileTensors::<E, D>::of(p, index, M as u32 * 16);
        let rows = tensors.rows;
        let range = portion.of(Mask::blocks(&rows, (N * KW) as u32 * 16));
        if portion.may_be_empty::<Mask>() && range.start == range.end {
            return portion.store_nothing_seen::<_, C, M, D>(&tensors, block);
        }

        // Prologue: Q, then the last STAGES - 1 key/value blocks, all in flight.
        let (q_buf, ring): (Unfilled<SharedTile<E, M, D>>, Ring<KvStage<E, N, D, KW>, STAGES>) = smem.split();
        let mut k = Walk::up(tensors.k, range.end * KW as u32 - 1, block);
        let mut v = Walk::up(tensors.v, range.end * KW as u32 - 1, block);
        let q_tile = q_buf.fill(|slot| slot.copy_edge(&mut Walk::up(tensors.q, tensors.m_block, block), block));
        let kv = ring.prologue(|i, slot| {
            if i < range.end - range.start {
                slot.k.copy_edge(&mut k, block);
                slot.v.copy_edge(&mut v, block);
            }
        });
        let q_tile = q_tile.land(&kv, block);
        let q_frag = Resident::<E, W, D, HELD>::load(&q_tile, warp);

        // Mainloop.
        let share = Share { rows, range, row0: rows.first + warp.index * W as u32 * 16, part };
        let mut stages = SelfFed { kv, k, v, start: range.start, block };
        let (mut acc_o, mut softmax) = attend::<E, Mask, W, KW, N, D, HELD>(p, share, &q_frag, &mut stages, warp);

        // Epilogue: one warp of each team gathers what the others saw.
        if KW > 1 {
            let SelfFed { kv, block, .. } = stages;
            let mine = (part > 0).then_some([part, warp.index]);
            let left = kv.reclaim(block).leave::<_, _, KW>((acc_o, softmax.state()), mine, warp, block);
            if part > 0 {
                return;
            }
            for other in 1..KW as u32 {
                let mut theirs = (RowVec::splat(0.0), RowSum::zero());
                left.take::<KW>([other, warp.index], &mut theirs, warp);
                let (mine, scale) = softmax.merge(theirs);
                left.add_scaled::<KW>([other, warp.index], &mut acc_o, &mine, &scale, warp);
            }
        }
        portion.store(&tensors, acc_o, &softmax, q_tile, warp);
    }
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const KW: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
> Run for Fwd<E, Mask, M, W, KW, N, D, HELD, STAGES>
{
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        Self::tile(&p, block.index(), &Whole, &mut block, smem)
    }
}

impl<K: Tile> Run for Persistent<K> {
    /// Tile after tile, as many blocks apart as there are.
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        let tiles = (block.index()..p.order.tiles).step_by(block.count() as usize);
        smem.rounds(&mut block, tiles, |index, block, smem| K::tile(&p, index, &Whole, block, smem))
    }
}
