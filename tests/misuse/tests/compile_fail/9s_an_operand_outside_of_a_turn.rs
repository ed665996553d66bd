//! The other warpgroup's operand, read or written without the turn.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, Acc, RowVec};
use tile::pipeline::Kept;
use tile::shared::SharedTile;
use tile::wgmma::{AbPassed, Baton};

fn read(group: &mut Group, o: &mut Acc<1, 16>, v: &Kept<SharedTile<F16, 4, 16>>) {
    group.run(AbPassed(o, v));
}

fn write(group: &mut Group, baton: &mut Baton<F16, 4>, p: &AFrag<F16, 1, 4>) {
    baton.pass(p, RowVec::splat(0.0), group);
}

fn main() {}
