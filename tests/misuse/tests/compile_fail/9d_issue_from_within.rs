//! A third product issued inside another one: the wait would count one group too many.
use contract::F16;
use misuse::{TmaStages, Group, GuardedQ};
use tile::mma::{AFrag, Acc};
use tile::wgmma::{Ab, Abt};

fn step(group: &mut Group, q: &GuardedQ<'_>, k: &mut TmaStages, v: &mut TmaStages, o: &mut Acc<1, 8>) {
    let p = AFrag::<F16, 1, 8>::zero();
    group.overlap(
        Abt(&mut Acc::unset(), q, k),
        Ab(o, &p, v),
        &mut (),
        |(), s| {
            group.run(Ab(&mut Acc::<1, 8>::zero(), &p, k));
            (false, s.lane_max())
        },
        |(), _, _, max, _| max,
    );
}

fn main() {}
