//! A stage kept beyond its closure. The stream refills the stage when the closure ends.
use contract::F16;
use misuse::{Stage, StageSlot};
use tile::Warp;
use tile::copy::CpAsync;
use tile::pipeline::Stream;

fn turn(mut kv: Stream<Stage<F16, 1, 4>, 2, 4>, mut warp: Warp) {
    let mut kept = None;
    let refill = |_: &StageSlot<F16, 1, 4, CpAsync<Warp>>, _: &()| {};
    kv.turn(&mut warp, |stage, _, _| kept = Some(stage), refill);
    kv.turn(&mut warp, |_, _, _| {}, refill);
    drop(kept);
}

fn main() {}
