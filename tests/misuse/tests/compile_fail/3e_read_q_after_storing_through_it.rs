//! A read of Q after `store_through`, which consumes the tile and overwrites its memory.
use contract::F16;
use tile::global::GlobalRows;
use tile::group::WarpRows;
use tile::mma::{Acc, Resident};
use tile::shared::SharedTile;

type Tile = SharedTile<F16, 8, 4>;

fn epilogue(q: Tile, o: &Acc<2, 4>, out: &GlobalRows<F16, 4>, mine: WarpRows<8, 2>) {
    q.spent().store_through(o, out, 0, mine);
    let _again = Resident::<_, 8, 2, 4, 4>::load(&q, mine);
}

fn main() {}
