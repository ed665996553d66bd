//! An A operand that holds more k-steps in registers than it has.
use contract::F16;
use tile::group::WarpRows;
use tile::mma::Resident;
use tile::shared::SharedTile;

fn load<'t>(q: &'t SharedTile<F16, 8, 4>, mine: WarpRows<8, 2>) -> Resident<'t, F16, 8, 2, 4, 8> {
    Resident::load(q, mine)
}

fn main() {
    let _ = load as fn(&'static _, _) -> _;
}
