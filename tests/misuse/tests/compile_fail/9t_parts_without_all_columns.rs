//! Two parts of a stage that together lack columns of Q.
use contract::F16;
use misuse::Group;
use tile::mma::Acc;
use tile::pipeline::{Kept, Published};
use tile::shared::SharedTile;
use tile::wgmma::AbtOfTwo;

fn scores(group: &mut Group, q: &Published<SharedTile<F16, 4, 36>>, part: &Kept<SharedTile<F16, 4, 16>>) {
    group.run(AbtOfTwo(&mut Acc::<1, 4>::unset(), q, part, part));
}

fn main() {
    let _ = scores as fn(&mut _, &_, &_);
}
