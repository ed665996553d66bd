//! Prefixes that groups of sequences share.

/// Groups of consecutive sequences that share their first pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// Each group's number of sequences, and the number of pages that they share.
    pub groups: Vec<[usize; 2]>,
    /// Whether the device knows the groups. Otherwise all groups are equal, and the host knows them.
    pub varlen: bool,
    /// Whether the launch makes two passes even if they do not pay.
    pub always: bool,
}

impl Shared {
    /// Creates groups of these numbers of sequences and shared pages. If all groups are equal, the host knows
    /// them. A launch always makes two passes.
    pub fn new(groups: impl Into<Vec<[usize; 2]>>) -> Self {
        let groups = groups.into();
        let varlen = groups.iter().any(|group| *group != groups[0]);
        Shared { groups, varlen, always: true }
    }

    /// Returns the group of sequence `b`, and the sequence's index in the group.
    pub(super) fn group(&self, mut b: usize) -> Option<(usize, usize)> {
        for (g, [count, _]) in self.groups.iter().enumerate() {
            if b < *count {
                return Some((g, b));
            }
            b -= count;
        }
        None
    }

    /// Returns the number of pages that sequence `b` shares.
    pub(super) fn pages(&self, b: usize) -> usize {
        self.group(b).map_or(0, |(g, _)| self.groups[g][1])
    }
}
