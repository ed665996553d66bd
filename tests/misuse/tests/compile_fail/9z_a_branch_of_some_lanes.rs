//! A condition that may differ from lane to lane, where a whole warp must take the branch or none of its
//! lanes.
use contract::F16;
use tile::wgmma::{Never, Step};

fn step<'p>(step: Step<'p, F16, 4, 8, 8, 8, 2>, lane: u32) -> Step<'p, F16, 4, 8, 8, 8, 2> {
    Step { never: Never(lane == 0), ..step }
}

fn main() {}
