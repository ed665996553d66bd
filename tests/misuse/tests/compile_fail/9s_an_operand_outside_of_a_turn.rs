//! The other warpgroup's operand, written without the turn.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, RowVec};
use tile::wgmma::Baton;

fn write(group: &mut Group, baton: &mut Baton<F16, 4>, p: &AFrag<F16, 1, 4>) {
    baton.pass(p, RowVec::splat(0.0), group);
}

fn main() {}
