//! P while the product still reads its registers.
use contract::F16;
use misuse::{Engine, Group, KeptQ};
use tile::{AFrag, Ab, Abt, Acc};

fn step(group: &mut Group, q: &KeptQ<'_>, k: &mut Engine, v: &mut Engine, o: &mut Acc<1, 8>) {
    let mut p = AFrag::<F16, 1, 8>::zero();
    group.overlap(
        Abt(&mut Acc::unset(), q, k),
        Ab(o, &p, v),
        &mut (),
        |(), s| {
            p = AFrag::zero();
            (false, s.lane_max())
        },
        |(), _, _, max, _| max,
    );
}

fn main() {}
