//! Prefixes that groups of sequences share (cascade attention).
use super::{Index, VarlenQueries};

/// Shared prefixes on a paged KV cache: groups of consecutive sequences share their first pages, for example
/// the pages of a system prompt. A launch reads each prefix once for all queries of its group, reads the rest
/// of each sequence, and merges both by their log-sum-exps (FlashInfer's `MultiLevelCascadeAttentionWrapper`,
/// vLLM's `cascade_attention`).
///
/// The request's own block table and lengths still describe whole sequences. If a pass over prefixes does not
/// pay or its conditions do not hold, the launch ignores the prefixes and reads whole sequences.
/// [`Plan::reason`](crate::plan::Plan::reason) states which way the plan takes, and docs/limits.md, "Shared
/// prefixes", lists the conditions.
///
/// | your groups | constructor | a captured graph can be replayed with |
/// |---|---|---|
/// | one group (vLLM's `common_prefix_len`) | [`SharedPrefixes::one`] | other lengths, pages |
/// | groups of equal sizes, prefixes of one length | [`SharedPrefixes::equal`] | other lengths, pages |
/// | any groups, prefixes of any lengths | [`SharedPrefixes::varlen`] | other groups and prefixes, too |
///
/// Every sequence must have at least the keys of its prefix, and under a causal mask at least `seqlen_q - 1`
/// keys more, so that every query sees the whole prefix. Sequences that pad the batch of a captured graph
/// need the keys of their prefix, too: with [`SharedPrefixes::one`] and [`SharedPrefixes::equal`], the pass
/// over prefixes reads the lengths of the first sequences of the batch. Other integers in device memory give
/// wrong results, but no access outside of the tensors.
///
/// The bits of a sequence's result depend on its group: the partial O of each of up to 8 parts of a prefix is
/// rounded to the dtype of O before the merge. Equal requests give equal bits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SharedPrefixes<M = u64> {
    /// The groups and their prefixes.
    pub groups: Groups<M>,
    /// Whether the launch makes the two passes even if they do not pay. Planning then returns an error if
    /// their conditions do not hold.
    pub always: bool,
}

/// The groups of [`SharedPrefixes`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Groups<M = u64> {
    /// The host knows the groups and the length of their prefixes.
    Equal {
        /// Number of groups; divides the number of sequences.
        count: usize,
        /// Number of shared pages, fewer than a sequence's. Group `g` consists of the `g`-th run of
        /// consecutive sequences. The first entries of its first sequence's row of the block table are its
        /// prefix's pages.
        pages: usize,
        /// Keys of each sequence behind its prefix.
        rest: Index<M>,
    },
    /// The device knows the groups, the pages of their prefixes, and the pages of each sequence behind its
    /// prefix.
    Varlen {
        /// The rows of Q of each group: `batch` is the number of groups, and `cu_seqlens_q` counts the
        /// queries of all sequences. Every sequence belongs to a group. A sequence that shares no page
        /// belongs to a group whose prefix has no key.
        queries: VarlenQueries<M>,
        /// The prefix of each group.
        prefix: Level<M>,
        /// The rest of each sequence.
        rest: Level<M>,
    },
}

/// A level of a cascade: block table and lengths of the prefixes, or of the sequences behind their prefixes.
/// Pages and scales are those of the request's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level<M = u64> {
    /// The page indices.
    pub entries: Index<M>,
    /// Entries per row: one row per group, or per sequence.
    pub columns: usize,
    /// Number of entries from one row to the next row: `columns` or more, unless there is one row.
    pub stride: usize,
    /// Keys of each row. The kernel clamps them to `columns` pages.
    pub lengths: Index<M>,
}

impl<M> Level<M> {
    /// Creates a level with a contiguous block table.
    pub const fn new(entries: Index<M>, columns: usize, lengths: Index<M>) -> Self {
        Level { entries, columns, stride: columns, lengths }
    }
}

impl<M: Copy> SharedPrefixes<M> {
    /// All sequences share their first `pages` pages. `rest` has the number of keys of each sequence behind
    /// these pages.
    pub const fn one(pages: usize, rest: Index<M>) -> Self {
        Self::equal(1, pages, rest)
    }

    /// There are `count` groups of equal numbers of sequences. The sequences of each group share their first
    /// `pages` pages. `rest` has the number of keys of each sequence behind these pages.
    pub const fn equal(count: usize, pages: usize, rest: Index<M>) -> Self {
        SharedPrefixes { groups: Groups::Equal { count, pages, rest }, always: false }
    }

    /// Groups of any numbers of sequences: `queries` has the rows of Q of each group, `prefix` the pages and
    /// keys of each group's prefix, and `rest` the pages and keys of each sequence behind its prefix.
    pub const fn varlen(queries: VarlenQueries<M>, prefix: Level<M>, rest: Level<M>) -> Self {
        SharedPrefixes { groups: Groups::Varlen { queries, prefix, rest }, always: false }
    }

    /// Makes the two passes even if they do not pay.
    #[must_use]
    pub const fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Returns the number of groups.
    pub(crate) const fn count(&self) -> usize {
        match self.groups {
            Groups::Equal { count, .. } => count,
            Groups::Varlen { queries, .. } => queries.batch,
        }
    }
}
