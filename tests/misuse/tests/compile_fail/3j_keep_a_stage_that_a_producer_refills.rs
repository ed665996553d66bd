//! A consumer keeps a stage beyond its closure. The end of the closure releases the stage, so that no
//! kernel can forget the release or keep the view.
use contract::F16;
use misuse::Stage;
use tile::pipeline::Consumer;

fn step(kv: &mut Consumer<Stage<F16, 4, 4>, 2>) {
    let mut kept = None;
    kv.consume(|stage| kept = Some(stage));
}

fn main() {}
