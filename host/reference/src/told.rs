//! Variants of the sequence arrays (lengths, starts) that the device holds when a launch runs.

/// A variant of the sequence arrays. A plan knows only bounds, so each launch of one plan may find another
/// variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The case's lengths.
    Filled,
    /// Fewer keys per sequence: some number from none to all.
    Fewer(u64),
    /// Invalid lengths among valid ones. A sequence is judged if the cache has the keys of its clamped
    /// length.
    Garbage(u64),
    /// Every length and every start is invalid. The judge checks only that the launch writes nothing outside
    /// of its outputs.
    Lost(u64),
}
