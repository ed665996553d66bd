//! Stages that a kernel refills by itself: it could refill a stage that a warpgroup reads, or read a stage
//! while a copy is in flight. Only `Warpgroup::seesaw` fills and reads them.
use contract::{F16, TensorMap};
use misuse::Group;
use tile::pipeline::{Boxes, Refilled};
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};

type Tile = SharedTile<F16, 4, 4>;

fn stale(
    stages: &Refilled<Tile, 2, Tma>,
    from: &TmaTensor<F16, 4, 4, TensorMap>,
    at: [u32; 3],
    group: &mut Group,
) {
    let old = stages.keep(0);
    stages.fill(2, Boxes { from, at }, group);
    stages.fill(2, Boxes { from, at }, group);
    let _ = [old, stages.keep(0)];
}

fn main() {}
