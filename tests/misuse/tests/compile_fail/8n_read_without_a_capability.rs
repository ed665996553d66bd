//! Masks that read a tensor, partial results and a head's number of their parameters. Without a capability,
//! nothing says that an index exists.
use contract::{Partials, RowValues, Vector};
use kernels_gpu::prelude::*;
use tile::global::{FillInts, GlobalVec, RowSlices, load_value};

fn value(vector: &Vector) -> f32 {
    GlobalVec::new(vector, 1 << 20, 0, 1).load_row(0, 0.0, &())
}

fn part(partials: &Partials, ended: tile::Ended) -> f32 {
    RowSlices::<1>::new(partials, 0, 1, 0, 0, &()).value(0, 0.0, ended)
}

fn number(values: &RowValues) -> f32 {
    load_value(values, [1 << 20, 0, 0], &())
}

fn store(integers: &Integers, of: &Sequence) {
    FillInts::new(integers, of).store(0, 1, true)
}

fn head(of: &Sequence) -> spec::Head {
    of.at
}

fn main() {}
