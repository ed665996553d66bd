//! The other warpgroup's operand, written without the turn.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, RowVec};
use tile::wgmma::OperandExchange;

fn write(group: &mut Group, exchange: &mut OperandExchange<F16, 4>, p: &AFrag<F16, 1, 4>) {
    exchange.pass(p, RowVec::splat(0.0), group);
}

fn main() {}
