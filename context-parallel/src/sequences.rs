//! The sequences of a varlen launch.

/// The sequences of a varlen launch: those of tiles, and between them queries that see no key, and keys that
/// no query sees.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sequences {
    /// The offsets of queries and of keys.
    pub starts: [Vec<i32>; 2],
    /// The most queries and the most keys of a sequence.
    pub longest: [usize; 2],
    /// The indices of the key segments that some query sees.
    pub seen: Vec<usize>,
    /// The index of the first offset among those of all launches.
    pub first: usize,
}

impl Sequences {
    /// Returns the number of sequences.
    pub const fn count(&self) -> usize {
        self.starts[0].len() - 1
    }
}
