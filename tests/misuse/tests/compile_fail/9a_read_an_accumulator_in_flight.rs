//! A read of O while O += P V is in flight: its registers still change.
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
            let _ = o.lane_max();
            (false, s.lane_max())
        },
        |(), _, _, max, _| max,
    );
}

fn main() {}
