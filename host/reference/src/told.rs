//! The integers that describe sequences in device memory during a launch.

/// The integers of one launch. A plan knows only bounds, so each launch of a plan may find other integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The case's integers.
    Filled,
    /// Fewer keys per sequence: no key, some or all of the case's keys.
    Fewer(u64),
    /// Some lengths are invalid. A sequence is judged if the cache holds its clamped length.
    Garbage(u64),
    /// All lengths and starts are invalid. The results are not judged, but writes outside the outputs are
    /// failures.
    Lost(u64),
}

/// Launches that find fewer keys and invalid lengths.
pub(super) fn others() -> Vec<Told> {
    vec![Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Filled]
}

/// Launches that find invalid starts.
pub(super) fn lost() -> Vec<Told> {
    vec![Told::Filled, Told::Lost(1), Told::Lost(2), Told::Lost(3), Told::Filled]
}
