//! The same operations in the right order, so that each failing program fails for its misuse alone.
use contract::F16;
use misuse::{TmaStages, Group, K, GuardedQ, Q, Stages};
use tile::{Block, Smem};
use tile::copy::Walk;
use tile::global::GlobalRows;
use tile::mma::{AFrag, Acc, Resident};
use tile::tma::TmaTensor;
use tile::wgmma::{Ab, Abt};

type Rows = GlobalRows<F16, 4>;

fn all(rows: Rows, mut block: Block<K>, smem: Smem<K>, s: &mut Acc<2, 4>, p: &AFrag<F16, 2, 4>) {
    let (mine, _) = block.split_groups::<8, 2, 1>();
    let warp = mine.warp();
    let (q, ring): (Q, Stages<2>) = smem.split();
    let (mut k, mut v) = (Walk::down(rows, 1, &block), Walk::down(rows, 1, &block));
    let q = q.fill(|slot| slot.copy_edge(&mut Walk::down(rows, 0, &block), &block));
    let kv = ring.prologue(q, |_, slot| slot.k.copy_edge(&mut k, &block));
    let (q, mut kv) = kv.land(&mut block);
    let q_frag = Resident::<F16, 8, 2, 4, 4>::load(&q, mine);
    let stage = kv.advance(&mut block, |slot, block| slot.v.copy_whole(&mut v, block));
    s.mma_abt(&q_frag, &stage.k, warp, |_| {});
    s.mma_ab(p, &stage.v, warp, |_| {});
    q.spent().store_through(s, &rows, 0, mine);
}

type Out = TmaTensor<F16, 4, 8>;

fn asynchronous(
    group: &mut Group,
    q: GuardedQ<'_>,
    [k, v]: [&mut TmaStages; 2],
    o: &mut Acc<1, 8>,
    to: &Out,
) {
    let p = AFrag::zero();
    let max = group.overlap(
        Abt(&mut Acc::unset(), &q, k),
        Ab(o, &p, v),
        &mut (),
        |(), s| (false, s.lane_max()),
        |(), _, _, max, _| max,
    );
    o.scale_rows(&max);
    q.store_through(o, to, [0; 3], group);
}

fn main() {
    let _ = all as fn(_, _, _, &mut _, &_);
    let _ = asynchronous as fn(&mut _, _, [&mut _; 2], &mut _, &_);
}
