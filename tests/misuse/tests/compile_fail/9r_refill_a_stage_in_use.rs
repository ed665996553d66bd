//! Stages that a kernel refills by itself: it could refill a stage that a warpgroup reads, or read a stage
//! while a copy is in flight. Only `Warpgroup::seesaw` fills and reads them.
use contract::{F16, TensorMap};
use misuse::Group;
use tile::pipeline::Refilled;
use tile::shared::SharedTile;
use tile::tma::{MapKind, TmaTensor};

type Tile = SharedTile<F16, 4, 4>;

fn stale(
    stages: &Refilled<Tile, 2, TensorMap>,
    from: &TmaTensor<F16, 4, 4, TensorMap>,
    at: <TensorMap as MapKind>::At,
    group: &mut Group,
) {
    let old = stages.keep(0);
    stages.fill(2, from, at, group);
    stages.fill(2, from, at, group);
    let _ = [old, stages.keep(0)];
}

fn main() {}
