//! Two parts of a stage that together lack columns of Q.
use contract::{F16, TensorMap};
use misuse::Group;
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::Team;
use tile::mma::{AFrag, Acc, RowVec};
use tile::pipeline::InFlight;
use tile::shared::SharedTile;
use tile::tma::{MapKind, TmaTensor};
use tile::wgmma::{Seesaw, SeesawStages};

/// Does nothing.
struct Idle;

impl Seesaw<F16, 4, 16> for Idle {
    type Left = TensorMap;
    type Right = TensorMap;
    fn count(&self) -> u32 {
        1
    }
    fn at(&self, _: u32) -> <TensorMap as MapKind>::At {
        loop {}
    }
    fn look_up(&mut self, _: u32) {}
    fn observe(&mut self, _: &mut Acc<1, 4>, _: u32) -> (bool, RowVec<1>) {
        (false, RowVec::splat(1.0))
    }
    fn operand(&mut self, _: &Acc<1, 4>) -> AFrag<F16, 1, 4> {
        loop {}
    }
    fn values(&self) -> RowVec<1> {
        RowVec::splat(0.0)
    }
    fn adopt(&mut self, _: RowVec<1>, _: &mut Acc<1, 16>) {}
    fn state(&self) -> [RowVec<1>; 2] {
        [RowVec::splat(0.0); 2]
    }
}

fn scores(
    group: Group,
    q: InFlight<SharedTile<F16, 4, 36>, CpAsync<Team<2>>>,
    stages: SeesawStages<F16, Idle, 4, 16, 16>,
    part: &TmaTensor<F16, 4, 16, TensorMap>,
) -> PartOfRows<16, 2> {
    group.seesaw(q, stages, (part, part), Idle)
}

fn main() {
    let _ = scores as fn(_, _, _, &_) -> _;
}
