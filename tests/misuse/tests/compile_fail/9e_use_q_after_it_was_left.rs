//! Q's place is left when it is dropped: from then on the copy engine may fill it.
use misuse::{Engine, Group, KeptQ};
use tile::{Abt, Acc};

fn step(group: &mut Group, q: KeptQ<'_>, k: &mut Engine) {
    let mut s = Acc::<1, 8>::unset();
    drop(q);
    group.run(Abt(&mut s, &q, k));
}

fn main() {}
