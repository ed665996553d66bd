//! Harmless mutants of kernels with splits, and of the kernels that combine splits.
use super::{CLASS, Harmless};
use ptx_sim::mutate::Operator;

const ROW: &str = "The row is a remainder of the division by the number of rows: it is never equal.";

pub(super) const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["split.rs", "GlobalVec::from_partials"],
        reason: "The log-sum-exp of a slice is always wanted: the merge reads it.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["split.rs", "while first < slices"],
        reason: "There is at least one slice.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["split.rs", "while first < slices"],
        reason: "One more round takes the last slice with no weight, as every last round does where slices \
                 are no multiple of four.",
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["split.rs", ".store_own(&own, o"],
        reason: ROW,
        idle: true,
        ..CLASS
    },
];
