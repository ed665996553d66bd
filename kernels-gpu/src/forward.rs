//! Portable forward kernels, one schedule a file. This file: every warp of a block copies and computes.
pub mod dequant;
pub mod int8_f16;
pub mod int8_fp8;
pub mod mainloop;
pub mod mixed;
pub mod overlap;
pub mod paged;
pub mod quantised;
pub mod specialised;
pub mod split;
pub mod statistics;
pub mod varlen;
pub mod wide;

use crate::entries::{Portable, Run};
use crate::forward::mainloop::{KvStage, Share, Stages, attend};
use crate::rows::Sequence;
use crate::tensors::TensorTile;
use crate::variant::MaskFn;
use crate::variant::tile_mask::TileMask;
use crate::work::TileNumber;
use attention_tile::LoadScales;
use core::ops::ControlFlow;
use spec::{
    AttnKernel, Forward, Fwd, FwdParams, Kernel, Line, MaskMarker, Persistent, Sm80, VariantParams,
    VarlenParams,
};
use tile::copy::TileSource;
use tile::copy::{CpAsync, TileWalk, Walk};
use tile::mma::{Mma, Resident};
use tile::pipeline::{Pipeline, Ring, Unfilled};
use tile::shared::SharedTile;
use tile::{Block, Smem};

/// Copies in which all threads of the block take part.
pub type ByBlock<C> = CpAsync<Block<C>>;

/// The shared memory for Q.
pub type QPlace<C, E, const M: usize, const D: usize> = Unfilled<SharedTile<E, M, D>, ByBlock<C>>;

/// The stages of keys and values.
type KvRing<
    C,
    E,
    const N: usize,
    const D: usize,
    const DV: usize,
    const KV_WARPS: usize,
    const STAGES: usize,
> = Ring<KvStage<E, N, D, DV, KV_WARPS>, STAGES, ByBlock<C>>;

/// Stages that the block itself refills. A copy starts `STAGES - 1` key blocks before its use.
struct SelfFed<
    'b,
    C: Kernel,
    E: Mma,
    Keys: TileWalk<E, N, D, Block<C>>,
    Values: TileWalk<E, N, DV, Block<C>>,
    const N: usize,
    const D: usize,
    const DV: usize,
    const KV_WARPS: usize,
    const STAGES: usize,
> {
    kv: Pipeline<KvStage<E, N, D, DV, KV_WARPS>, STAGES, ByBlock<C>>,
    k: Keys,
    v: Values,
    /// The last key block that the loop takes, which has the lowest index.
    start: u32,
    block: &'b mut Block<C>,
}

impl<
    C: Kernel,
    E: Mma,
    Keys: TileWalk<E, N, D, Block<C>>,
    Values: TileWalk<E, N, DV, Block<C>>,
    const N: usize,
    const D: usize,
    const DV: usize,
    const KV_WARPS: usize,
    const STAGES: usize,
> Stages<KvStage<E, N, D, DV, KV_WARPS>> for SelfFed<'_, C, E, Keys, Values, N, D, DV, KV_WARPS, STAGES>
{
    #[inline(always)]
    fn next(&mut self, n: u32, read: impl FnOnce(&KvStage<E, N, D, DV, KV_WARPS>)) {
        let SelfFed { kv, k, v, start, block } = self;
        read(&kv.advance(block, |slot, block| {
            if STAGES == 1 {
                // Without a prologue, this call copies the first block, which the end of the keys may cut.
                slot.k.copy_edge(k, block);
                slot.v.copy_edge(v, block);
            } else if n + 1 >= *start + STAGES as u32 {
                slot.k.copy_whole(k, block);
                slot.v.copy_whole(v, block);
            }
        }))
    }
}

/// A portable kernel. Its blocks can process any work tile.
pub trait Tile: Forward<Scales: LoadScales, OnVarlen = VarlenParams> + AttnKernel<Isa = Sm80> {
    /// Processes `tile`, under a contract `C` that has the kernel's threads and shared memory.
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &VariantParams<Self>,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    );
}

impl<K: Tile<Params = FwdParams>> Portable for K {
    #[inline(always)]
    fn body<C: Kernel>(p: &FwdParams, variant: &VariantParams<K>, mut block: Block<C>, smem: Smem<C>) {
        K::tile(p, variant, &TileNumber(block.index()), &mut block, smem)
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
    const DV: usize,
> Tile for Fwd<E, Mask, M, W, KV_WARPS, N, D, Q_STEPS, STAGES, DV>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &Mask::Params,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        let (mine, team) = block.split_groups::<M, W, KV_WARPS>();
        let tensors = tile.tensors::<E, D, DV>(p, M as u32 * 16, Self::INFO.has_own_values());
        let rows = tensors.rows;
        let of = Sequence::of(p, &rows, tile.before(), block);
        let tile_n = (N * KV_WARPS) as u32 * 16;
        let mask = Mask::tile(variant, &of, [M as u32 * 16, tile_n]).uniform(mine.warp());
        let range = tile.share(mask.range(&rows, tile_n));
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            let sink = Mask::sink(variant, &of, tile.counts_sink());
            return tile.store_nothing_seen::<_, C, M, D, DV>(p, &tensors, sink, block);
        }

        // Prologue: the copies of Q, and then of the last STAGES - 1 key/value blocks, are all in flight.
        let (q, ring): (QPlace<C, E, M, D>, KvRing<C, E, N, D, DV, KV_WARPS, STAGES>) = smem.split();
        let k = tensors.k.walk(range.end * KV_WARPS as u32 - 1, block);
        let v = tensors.v.walk(range.end * KV_WARPS as u32 - 1, block);
        let next = mask.next(range);
        let mut k = mask.lead(k, &next, (KV_WARPS, false), block);
        let mut v = mask.lead(v, &next, (KV_WARPS, true), block);
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
        let share = Share { rows, of, mask, range, mine, team };
        let (mut acc_o, mut softmax) =
            attend::<E, Mask, _, _, M, W, KV_WARPS, N, DV>((p, variant), share, &q_frag, &mut stages);

        // Epilogue: the first split group merges the other groups' results.
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
        if Mask::SINK {
            softmax.add_sink(Mask::sink(variant, &of, tile.counts_sink()), &mut acc_o);
        }
        tile.store(p, &tensors, acc_o, &softmax, q_tile.spent().first_columns(), mine);
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
    const DV: usize,
> Run for Fwd<E, Mask, M, W, KV_WARPS, N, D, Q_STEPS, STAGES, DV>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}

impl<K: Tile<Params = FwdParams, Mask: MaskMarker<Params = ()>>> Run for Persistent<K> {
    /// Processes a block's work tiles, whose indices differ by the grid size.
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        let tiles = (block.index()..p.order.tiles).step_by(block.count() as usize);
        smem.rounds(&mut block, tiles, &p, (), |p, (), index, block, smem| {
            K::tile(p, &(), &TileNumber(index), block, smem);
            ControlFlow::Continue(())
        })
    }
}
