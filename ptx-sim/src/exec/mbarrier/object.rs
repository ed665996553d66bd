//! The mbarrier object: phases, arrivals, bytes.

use std::fmt::{self, Display, Formatter};

use crate::exec::order::Handover;

/// Largest arrival count, and the most bytes that a phase may be owed.
pub(super) const MAX_COUNT: u32 = (1 << 20) - 1;

/// An mbarrier object.
#[derive(Debug, Default)]
pub(in crate::exec) struct MBarrier {
    /// Mbarriers are numbered as they are initialised.
    pub(super) number: u32,
    /// The warp that initialised it, when, and where.
    pub(super) init: (usize, u32, u32),
    /// Completed phases.
    pub(super) phase: u64,
    pub(super) expected: u32,
    pub(super) left: u32,
    /// Arrivals that the phases after this one no longer expect.
    pub(super) dropped: u32,
    /// Bytes that transactions still owe.
    pub(super) transactions: i64,
    /// The copy engine sees the mbarrier: a fence has made its initialisation visible.
    pub shown: bool,
    /// The agent that counts its phases; set once a bulk copy has completed on it.
    pub agent: Option<usize>,
    /// Knowledge that the arrivals of this phase hand over.
    pub(super) knowledge: Handover,
    /// Knowledge that the arrivals of the last phase of each parity handed over.
    pub(super) done: [Handover; 2],
    /// Of each instruction and warp the last bulk copy that has come.
    pub(super) fed: Vec<Fed>,
    /// Changes when a waiter may have something new to see.
    pub version: u32,
}

/// A bulk copy that has come, and the phase that counted its bytes.
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

    /// Whether the phase has begun: something arrived, or bytes are owed.
    pub(super) fn is_under_way(&self) -> bool {
        (self.left, self.transactions) != (self.expected, 0)
    }

    /// Adds `bytes` to the expected transactions. Returns whether an mbarrier can count them.
    pub(super) fn owe(&mut self, bytes: i64) -> bool {
        self.transactions += bytes;
        self.transactions.unsigned_abs() <= u64::from(MAX_COUNT)
    }

    /// Counts `count` arrivals; none where the phase expects no more.
    pub(super) fn arrive(&mut self, count: u32, handover: &Handover) -> bool {
        self.knowledge.merge(handover);
        let enough = count <= self.left;
        self.left = self.left.saturating_sub(count);
        self.settle();
        enough
    }

    /// A fence of an agent with this knowledge shows earlier initialisations to the copy engine.
    pub fn show(&mut self, row: &[u32]) {
        let (by, when, _) = self.init;
        self.shown |= row.get(by).is_some_and(|&known| when <= known);
    }

    /// Completes the phase if nothing is missing.
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
