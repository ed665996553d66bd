//! The integers that describe sequences in device memory during a launch.

/// The integers of one launch. A plan knows only bounds, so each launch of a plan may find other integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceLengths {
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
pub(super) fn others() -> Vec<DeviceLengths> {
    vec![DeviceLengths::Filled, DeviceLengths::Fewer(1), DeviceLengths::Garbage(2), DeviceLengths::Filled]
}

/// Launches that find invalid starts.
pub(super) fn lost() -> Vec<DeviceLengths> {
    vec![
        DeviceLengths::Filled,
        DeviceLengths::Lost(1),
        DeviceLengths::Lost(2),
        DeviceLengths::Lost(3),
        DeviceLengths::Filled,
    ]
}
