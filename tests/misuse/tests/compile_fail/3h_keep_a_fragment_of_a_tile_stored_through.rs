//! An A operand kept beyond `store_through`: it would read O instead of Q.
use contract::F16;
use tile::global::GlobalRows;
use tile::group::WarpRows;
use tile::mma::{Acc, Resident};
use tile::shared::SharedTile;

type Tile<const R: usize> = SharedTile<F16, R, 4>;

fn epilogue(q: Tile<8>, k: &Tile<4>, s: &mut Acc<2, 4>, out: &GlobalRows<F16, 4>, mine: WarpRows<8, 2>) {
    let q_frag = Resident::<_, 8, 2, 4, 0>::load(&q, mine);
    q.spent().store_through(s, out, 0, mine);
    s.mma_abt(&q_frag, k, mine.warp(), |_| {});
}

fn main() {}
