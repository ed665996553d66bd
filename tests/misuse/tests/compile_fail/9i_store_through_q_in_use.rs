//! Q used after O is stored through Q's place.
use contract::F16;
use misuse::{TmaStages, Group, GuardedQ};
use tile::mma::Acc;
use tile::tma::TmaTensor;
use tile::wgmma::Abt;

fn send(group: &mut Group, q: GuardedQ<'_>, k: &mut TmaStages, o: &mut Acc<1, 8>, to: &TmaTensor<F16, 4, 8>) {
    q.store_through(o, to, [0; 3], group);
    group.run(Abt(o, &q, k));
}

fn main() {}
