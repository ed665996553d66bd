//! The state of an mbarrier: phases, arrivals, bytes.

use std::fmt::{self, Display, Formatter};

use crate::exec::order::Handover;

/// Largest number of arrivals, and largest transaction count, of a phase.
pub(super) const MAX_COUNT: u32 = (1 << 20) - 1;

/// The state of an mbarrier.
#[derive(Debug, Default)]
pub(in crate::exec) struct MBarrier {
    /// The index of this mbarrier in the order of initialisation.
    pub(super) number: u32,
    /// The warp that initialised the mbarrier, the clock of the warp, and the site.
    pub(super) init: (usize, u32, u32),
    /// Number of completed phases.
    pub(super) phase: u64,
    pub(super) expected: u32,
    pub(super) left: u32,
    /// Number of dropped arrivals, which the later phases no longer expect.
    pub(super) dropped: u32,
    /// The transaction count: the number of bytes that have not arrived.
    pub(super) transactions: i64,
    /// Whether a fence has made the initialisation visible to TMA.
    pub shown: bool,
    /// The agent that counts the phases of this mbarrier. The agent exists after the first bulk copy has
    /// completed on the mbarrier.
    pub agent: Option<usize>,
    /// The knowledge that the arrivals of the current phase hand over to its waiting warps.
    pub(super) knowledge: Handover,
    /// The knowledge that arrivals of the current phase hand over to the waiting warps.
    pub(super) done: [Handover; 2],
    /// For each instruction and warp, the last bulk copy that has landed.
    pub(super) fed: Vec<Fed>,
    /// A version number. The number changes whenever a warp that polls the mbarrier should poll again.
    pub version: u32,
}

/// A landed bulk copy, and the phase that counted its bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct Fed {
    pub warp: usize,
    pub site: u32,
    pub lane: usize,
    pub phase: u64,
}

impl Display for MBarrier {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "phase {}, {} of {} arrivals missing", self.phase, self.left, self.expected)?;
        if self.transactions != 0 {
            write!(f, ", {} bytes outstanding", self.transactions)?;
        }
        Ok(())
    }
}

impl MBarrier {
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// Counts the bytes that a bulk copy has delivered.
    pub fn deliver(&mut self, bytes: i64, fed: Fed, handover: &Handover) {
        match self.fed.iter_mut().find(|it| (it.site, it.warp) == (fed.site, fed.warp)) {
            Some(last) => *last = fed,
            None => self.fed.push(fed),
        }
        self.knowledge.merge(handover);
        self.transactions -= bytes;
        self.settle();
    }

    /// Whether the current phase has begun: a thread has arrived, or bytes are expected.
    pub(super) fn is_under_way(&self) -> bool {
        (self.left, self.transactions) != (self.expected, 0)
    }

    /// Adds `bytes` to the expected transactions. Returns false if the count overflows.
    pub(super) fn owe(&mut self, bytes: i64) -> bool {
        self.transactions += bytes;
        self.transactions.unsigned_abs() <= u64::from(MAX_COUNT)
    }

    /// Counts `count` arrivals. Returns false if the phase expects fewer arrivals.
    pub(super) fn arrive(&mut self, count: u32, handover: &Handover) -> bool {
        self.knowledge.merge(handover);
        let enough = count <= self.left;
        self.left = self.left.saturating_sub(count);
        self.settle();
        enough
    }

    /// Makes the initialisation visible to TMA if the agent of a fence, whose knowledge is `row`, knows of
    /// it.
    pub fn show(&mut self, row: &[u32]) {
        let (by, when, _) = self.init;
        self.shown |= row.get(by).is_some_and(|&known| when <= known);
    }

    /// Completes the phase if no arrival and no byte is missing.
    pub(super) fn settle(&mut self) {
        if self.left == 0 && self.transactions == 0 {
            self.done[(self.phase & 1) as usize] = std::mem::take(&mut self.knowledge);
            self.phase += 1;
            self.expected = self.expected.saturating_sub(std::mem::take(&mut self.dropped));
            self.left = self.expected;
            self.version = self.version.wrapping_add(1);
        }
    }
}
