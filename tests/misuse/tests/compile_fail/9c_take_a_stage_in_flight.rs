//! The stage of V that a product reads: whoever has it could leave it, and it would be filled again.
use contract::F16;
use misuse::{Engine, Group, KeptQ};
use tile::{AFrag, Ab, Abt, Acc};

fn step(group: &mut Group, q: &KeptQ<'_>, k: &mut Engine, v: &mut Engine, o: &mut Acc<1, 8>) {
    let p = AFrag::<F16, 1, 8>::zero();
    group.overlap(
        Abt(&mut Acc::unset(), q, k),
        Ab(o, &p, v),
        &mut (),
        |(), s| {
            v.wait();
            (false, s.lane_max())
        },
        |(), _, _, max, _| max,
    );
}

fn main() {}
