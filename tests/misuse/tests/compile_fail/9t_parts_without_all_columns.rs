//! Two parts of a stage that together lack columns of Q.
use contract::{F16, TensorMap};
use misuse::Group;
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::Team;
use tile::mma::{AFrag, Acc, RowVec};
use tile::pipeline::{Boxes, InFlight, Refill};
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};
use tile::wgmma::{Seesaw, SeesawStages};

/// A part of a stage in global memory.
type Part<'a> = &'a TmaTensor<F16, 4, 16, TensorMap>;

/// Computes nothing. Both parts come from one tensor.
struct Idle<'a>(Part<'a>);

impl Seesaw<F16, 4, 16, 16> for Idle<'_> {
    type Left = Tma;
    type Right = Tma;
    fn count(&self) -> u32 {
        1
    }
    fn look_up(&mut self, _: u32) {}
    fn left(&mut self, _: u32) -> impl Refill<SharedTile<F16, 4, 16>, Tma> {
        Boxes { from: self.0, at: [0; 3] }
    }
    fn right(&mut self, _: u32) -> impl Refill<SharedTile<F16, 4, 16>, Tma> {
        Boxes { from: self.0, at: [0; 3] }
    }
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

fn scores<'a>(
    group: Group,
    q: InFlight<SharedTile<F16, 4, 36>, CpAsync<Team<2>>>,
    stages: SeesawStages<F16, Idle<'a>, 4, 16, 16>,
    part: Part<'a>,
) -> PartOfRows<16, 2> {
    group.seesaw(q, stages, Idle(part))
}

fn main() {
    let _ = scores as fn(_, _, _, _) -> _;
}
