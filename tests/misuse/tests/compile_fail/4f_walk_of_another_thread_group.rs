//! A walk used by a thread group that did not make it: the group would copy other rows.
use contract::F16;
use misuse::{K, Stage};
use tile::{Block, Warp};
use tile::copy::{CpAsync, Walk};
use tile::pipeline::Producer;

fn produce(
    kv: &mut Producer<Stage<F16, 4, 4>, 2, CpAsync<Warp>>,
    walk: &mut Walk<F16, 4, 4, Block<K>>,
    warp: Warp,
) {
    kv.produce(|slot| slot.k.copy_edge(walk, &warp));
}

fn main() {}
