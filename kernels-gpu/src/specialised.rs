//! Forward attention with a warp that only copies (FlashAttention-3, section 3.1, on `cp.async` and mbarriers of sm_80).
use crate::entries::Run;
use crate::mainloop::{KvStage, Share, Stages, attend};
use crate::mask::MaskFn;
use crate::tensors::TileTensors;
use spec::{FwdParams, FwdSpecialised};
use tile::{Block, Consumer, Lent, Mma, Relay, Resident, Role, SharedLayout, SharedTile, Smem, Unfilled, Walk};

impl<T: SharedLayout, const STAGES: usize> Stages<T> for Consumer<T, STAGES> {
    type Stage<'a>
        = Lent<'a, T>
    where
        Self: 'a;
    #[inline(always)]
    fn next(&mut self, _n: u32) -> Lent<'_, T> {
        self.wait()
    }
}

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
> Run for FwdSpecialised<E, Mask, M, W, N, D, HELD, STAGES>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        let tensors = TileTensors::<E, D>::of(&p, block.index(), M as u32 * 16);
        let rows = tensors.rows;
        let range = Mask::blocks(&rows, N as u32 * 16);
        if !Mask::SEES_ALL && range.start == range.end {
            return tensors.store_nothing_seen::<Self, M>(&block);
        }

        // Prologue: every warp fetches Q.
        let (q_buf, relay): (Unfilled<SharedTile<E, M, D>>, Relay<KvStage<E, N, D, 1>, STAGES>) = smem.split();
        let q_tile = q_buf.fill(|slot| slot.copy_edge(&mut Walk::up(tensors.q, tensors.m_block, &block), &block));
        let (q_tile, role) = relay.specialise(q_tile, block);

        match role {
            Role::Producer(mut kv) => {
                let crew = kv.crew();
                let mut k = Walk::up(tensors.k, range.end - 1, &crew);
                let mut v = Walk::up(tensors.v, range.end - 1, &crew);
                for _ in range.start..range.end {
                    kv.produce(|slot| {
                        slot.k.copy_edge(&mut k, &crew);
                        slot.v.copy_edge(&mut v, &crew);
                    });
                }
                kv.finish();
            }
            Role::Consumer(mut kv, warp) => {
                let q_frag = Resident::<E, W, D, HELD>::load(&q_tile, warp);
                let share = Share { rows, range, row0: rows.first + warp.index * W as u32 * 16, part: 0 };
                let (acc_o, softmax) = attend::<E, Mask, W, 1, N, D, HELD>(&p, share, &q_frag, &mut kv, warp);
                tensors.store(acc_o, &softmax, q_tile, warp);
            }
        }
    }
}
