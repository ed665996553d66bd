//! What the device is told of sequences when a launch runs.

/// Integers of one launch. A plan knows bounds only, so that others may stand there at the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// What the case says.
    Filled,
    /// Of each sequence fewer keys, or none, or all.
    Fewer(u64),
    /// Lengths that make no sense among right ones. Those are judged that, clamped, the cache has.
    Garbage(u64),
    /// No length and no start makes sense: nothing is judged but that nothing else is touched.
    Lost(u64),
}
