//! The same operations in their right order, so that each failure beside it is the misuse and nothing else.
use contract::F16;
use misuse::{K, Stage};
use tile::{AFrag, Acc, Block, GlobalRows, Resident, Ring, SharedTile, Smem, Unfilled, Walk};

fn all(rows: GlobalRows<F16, 4>, mut block: Block<K>, smem: Smem<K>, s: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>) {
    let warp = block.warp();
    let (q, ring): (Unfilled<SharedTile<F16, 8, 4>>, Ring<Stage<F16, 4, 4>, 2>) = smem.split();
    let (mut k, mut v) = (Walk::up(rows, 1, &block), Walk::up(rows, 1, &block));
    let q = q.fill(|slot| slot.copy_edge(&mut Walk::up(rows, 0, &block), &block));
    let mut kv = ring.prologue(|_, slot| slot.k.copy_edge(&mut k, &block));
    let q = q.land(&kv, &mut block);
    let q_frag = Resident::<F16, 2, 4, 4>::load(&q, warp);
    let stage = kv.advance(&mut block, |vacant, block| vacant.v.copy_whole(&mut v, block));
    s.mma_abt(&q_frag, &stage.k, warp, |_| {});
    s.mma_ab(p, &stage.v, warp, |_| {});
    q.store_through(s, &rows, 0, warp);
}

fn main() {
    let _ = all as fn(_, _, _, &mut _, &_);
}
