//! A product with Q after Q's place was released to TMA.
use misuse::{TmaStages, Group, GuardedQ};
use tile::mma::Acc;
use tile::wgmma::Abt;

fn step(group: &mut Group, q: GuardedQ<'_>, k: &mut TmaStages) {
    let mut s = Acc::<1, 8>::unset();
    drop(q);
    group.run(Abt(&mut s, &q, k));
}

fn main() {}
