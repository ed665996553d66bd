//! A `wgmma` of 160 columns, which no instruction wrapper provides.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, Acc};
use tile::pipeline::Consumer;
use tile::shared::SharedTile;
use tile::tma::Tma;
use tile::wgmma::Ab;

fn step(group: &mut Group, v: &mut Consumer<SharedTile<F16, 2, 10>, 2, Tma>) {
    group.run(Ab(&mut Acc::<1, 10>::zero(), &AFrag::<F16, 1, 2>::zero(), v));
}

fn main() {
    let _ = step as fn(&mut _, &mut _);
}
