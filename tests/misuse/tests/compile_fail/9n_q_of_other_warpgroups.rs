//! Two warpgroups multiply a Q tile of three: no warpgroup owns the third's rows.
use contract::F16;
use misuse::{TmaStages, Group};
use tile::mma::Acc;
use tile::pipeline::StageGuard;
use tile::shared::SharedTiles;
use tile::wgmma::Abt;

fn step(group: &mut Group, q: &StageGuard<'_, SharedTiles<F16, 4, 8, 3>>, k: &mut TmaStages) {
    group.run(Abt(&mut Acc::<1, 8>::unset(), q, k));
}

fn main() {
    let _ = step as fn(&mut _, &_, &mut _);
}
