//! Harmless mutants of split-KV kernels, and of the kernels that combine their splits.
use super::{CLASS, Harmless};
use ptx_sim::mutate::Operator;

const ROW: &str = "The row is the remainder of a division by the number of rows, so it never equals that \
                   number.";

pub(super) const HARMLESS: &[Harmless] = &[
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["split.rs", "GlobalVec::from_partials"],
        reason: "Every split has a log-sum-exp, because the combine kernel reads it.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::NeverBranch],
        source: ["split.rs", "while first < slices"],
        reason: "There is at least one split.",
        idle: true,
        ..CLASS
    },
    Harmless {
        operators: &[Operator::OffByOne],
        source: ["split.rs", "while first < slices"],
        reason: "One more round takes the last split with no weight, like every last round if the number of \
                 splits is not a multiple of four.",
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
