//! O through the map of keys.
use contract::F16;
use misuse::Group;
use tile::{Acc, GlobalTiles, Outbox};

fn send(out: &mut Outbox<F16, 8, 2>, o: &Acc<1, 8>, keys: &GlobalTiles<F16, 8, 8>, group: &mut Group) {
    out.send(o, keys, [0; 3], group);
}

fn main() {}
