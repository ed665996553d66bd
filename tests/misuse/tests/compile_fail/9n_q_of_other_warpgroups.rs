//! Two warpgroups multiply what three have copied: the third's rows belong to nobody.
use contract::F16;
use misuse::{Engine, Group};
use tile::{Abt, Acc, Kept, SharedTiles};

fn step(group: &mut Group, q: &Kept<'_, SharedTiles<F16, 4, 8, 3>>, k: &mut Engine) {
    group.run(Abt(&mut Acc::<1, 8>::unset(), q, k));
}

fn main() {
    let _ = step as fn(&mut _, &_, &mut _);
}
