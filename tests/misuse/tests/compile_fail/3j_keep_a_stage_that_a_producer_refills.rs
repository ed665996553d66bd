//! A consumer's view of a stage ends with its closure, behind which the stage is handed back: nothing can
//! be forgotten, and nothing kept.
use contract::F16;
use misuse::Stage;
use tile::pipeline::Consumer;

fn step(kv: &mut Consumer<Stage<F16, 4, 4>, 2>) {
    let mut kept = None;
    kv.consume(|stage| kept = Some(stage));
}

fn main() {}
