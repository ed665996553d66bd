//! Schedules attention as one pass over the keys of each sequence, or, if groups of sequences share
//! prefixes, as a pass over the prefixes and a pass over the rest of each sequence.
use super::Scheduled;
use crate::Problem;
use crate::place::Place;

/// The passes of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passes {
    /// The only pass, or the pass over the rest of each sequence.
    pub main: Scheduled,
    /// The pass over shared prefixes.
    pub prefix: Option<PrefixPass>,
}

/// The pass over shared prefixes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixPass {
    /// The kernel, for which a group is a sequence with the queries of all its sequences.
    pub pass: Scheduled,
    /// The number of parts of a prefix. The kernel takes each part as a sequence.
    pub parts: usize,
    /// Number of rows of O in all heads.
    rows: u64,
    /// Bytes of a row of O.
    row_bytes: u64,
}

/// The places of the passes' results in a workspace, as addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Room {
    /// O of each part of the prefixes: `[batch][seqlen_q][heads][head_dim_v]`.
    pub o: u64,
    /// Bytes from one part's O to the next part's O.
    pub o_bytes: u64,
    /// LSE of each part of the prefixes, `[heads][batch][seqlen_q]`; for several groups, a group is a batch.
    pub lse: u64,
    /// Bytes from one part's LSE to the next part's LSE.
    pub lse_bytes: u64,
    /// Partial results of the splits of one pass.
    pub partials: u64,
}

impl Passes {
    /// Returns a single pass over whole sequences.
    pub const fn whole(main: Scheduled) -> Self {
        Passes { main, prefix: None }
    }

    /// Returns the bytes of workspace and of counters that the launches use. The passes run one after the
    /// other, so they share partial results and counters.
    pub fn scratch_bytes(&self) -> [u64; 2] {
        let main = self.main.scratch_bytes();
        let Some(prefix) = &self.prefix else { return main };
        let own = prefix.pass.scratch_bytes();
        let [partials, counters] = [0, 1].map(|i| main[i].max(own[i]));
        [prefix.room(0).partials.saturating_add(partials), counters]
    }

    /// Returns the places of the launch's kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        let prefix = self.prefix.iter().flat_map(|prefix| prefix.pass.kernels());
        prefix.chain(self.main.kernels())
    }
}

impl PrefixPass {
    /// Returns the pass for a problem with batched queries.
    pub fn new(p: &Problem, pass: Scheduled, parts: usize) -> Self {
        let rows = (p.batch as u64).saturating_mul(p.seqlen_q as u64).saturating_mul(p.heads_q as u64);
        let row_bytes = (p.head_dim_v * p.dtype.bytes()) as u64;
        PrefixPass { pass, parts, rows, row_bytes }
    }

    /// Returns the places in a workspace at `address`.
    pub fn room(&self, address: u64) -> Room {
        let o_bytes = self.rows.saturating_mul(self.row_bytes);
        let lse_bytes = self.rows.saturating_mul(4).saturating_add(15) / 16 * 16;
        let parts = self.parts as u64;
        let lse = address.saturating_add(o_bytes.saturating_mul(parts));
        let partials = lse.saturating_add(lse_bytes.saturating_mul(parts));
        Room { o: address, o_bytes, lse, lse_bytes, partials }
    }
}
