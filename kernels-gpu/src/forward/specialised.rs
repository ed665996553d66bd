//! Forward attention with a producer warp (FlashAttention-3, section 3.1, on `cp.async` and mbarriers of
//! sm_80).
use crate::entries::{Portable, Run};
use crate::forward::QPlace;
use crate::forward::mainloop::{KvStage, Share, Stages, attend};
use crate::rows::Sequence;
use crate::tensors::TensorTile;
use crate::variant::MaskFn;
use crate::variant::tile_mask::TileMask;
use crate::work::TileNumber;
use spec::{FwdParams, FwdSpecialised, Kernel};
use tile::copy::{CpAsync, Walk};
use tile::group::SplitGroup;
use tile::mma::{Mma, Resident};
use tile::pipeline::{Consumer, MbarrierPipeline};
use tile::shared::SharedLayout;
use tile::{Block, Smem, Warp};

/// The stages of keys and values, which the producer warp fills.
type KvRelay<E, const N: usize, const D: usize, const STAGES: usize> =
    MbarrierPipeline<KvStage<E, N, D, D, 1>, STAGES, CpAsync<Warp>>;

impl<T: SharedLayout, const STAGES: usize> Stages<T> for Consumer<T, STAGES> {
    #[inline(always)]
    fn next(&mut self, _n: u32, read: impl FnOnce(&T)) {
        self.consume(read)
    }
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
> Portable for FwdSpecialised<E, Mask, M, W, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn body<C: Kernel>(p: &FwdParams, variant: &Mask::Params, block: Block<C>, smem: Smem<C>) {
        const { assert!(!Mask::LISTED, "`FwdSpecialised` takes ranges of blocks: `BlockSparse` needs `Fwd`") }
        let tensors = TileNumber(block.index()).tensors::<E, D, D>(p, M as u32 * 16, false);
        let rows = tensors.rows;
        let of = Sequence::of(p, &rows, 0, &block);
        let mask = Mask::tile(variant, &of, [M as u32 * 16, N as u32 * 16]);
        let range = mask.range(&rows, N as u32 * 16);
        if !Mask::SEES_ALL && range.start == range.end {
            return tensors.store_nothing_seen::<C, M>(Mask::sink(variant, &of, true), &block);
        }

        // Prologue: every warp copies Q.
        let (q, relay): (QPlace<C, E, M, D>, KvRelay<E, N, D, STAGES>) = smem.split();
        let q = q.fill(|slot| slot.copy_edge(&mut Walk::down(tensors.q, tensors.m_block, &block), &block));

        relay.specialize(
            q,
            block,
            |kv| {
                let group = kv.warp();
                let mut k = Walk::down(tensors.k, range.end - 1, &group);
                let mut v = Walk::down(tensors.v, range.end - 1, &group);
                for _ in range.start..range.end {
                    kv.produce(|slot| {
                        slot.k.copy_edge(&mut k, &group);
                        slot.v.copy_edge(&mut v, &group);
                    });
                }
            },
            |q_tile, kv, consumers| {
                let mine = consumers.rows::<M, W>();
                let q_frag = Resident::<_, M, W, D, Q_STEPS>::load(&q_tile, mine);
                let share = Share { rows, of, mask, range, mine, team: SplitGroup::ONLY };
                let (mut acc_o, mut softmax) =
                    attend::<E, Mask, _, _, M, W, 1, N, D>((p, variant), share, &q_frag, kv);
                if Mask::SINK {
                    softmax.add_sink(Mask::sink(variant, &of, true), &mut acc_o);
                }
                tensors.store(acc_o, &softmax, q_tile.spent(), mine);
            },
        );
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
    const STAGES: usize,
> Run for FwdSpecialised<E, Mask, M, W, N, D, Q_STEPS, STAGES>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
