//! O leaves through Q's place: Q is gone.
use contract::F16;
use misuse::{Engine, Group, KeptQ};
use tile::{Abt, Acc, GlobalTiles};

fn send(group: &mut Group, q: KeptQ<'_>, k: &mut Engine, o: &mut Acc<1, 8>, to: &GlobalTiles<F16, 4, 8>) {
    q.send_through(o, to, [0; 3], group);
    group.run(Abt(o, &q, k));
}

fn main() {}
