//! A product of Q while its copies are in flight: only a published tile is visible to products.
use contract::{F16, TensorMap};
use misuse::Group;
use tile::copy::CpAsync;
use tile::group::Team;
use tile::mma::Acc;
use tile::pipeline::{InFlight, Refilled};
use tile::shared::SharedTile;
use tile::wgmma::AbtOfTwo;

type Stages = Refilled<SharedTile<F16, 4, 4>, 2, TensorMap>;

fn scores(group: &mut Group, q: InFlight<SharedTile<F16, 4, 8>, CpAsync<Team<2>>>, l: Stages, r: Stages) {
    group.run(AbtOfTwo(&mut Acc::<1, 4>::unset(), &q, &l.keep(0), &r.keep(0)));
}

fn main() {}
