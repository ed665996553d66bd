//! A record of one access of one warp: agent, clock, strength and lanes. The file also has the rule for the
//! pairs of accesses that must be ordered.

use crate::op::{Order, Scope};

const NOBODY: u16 = u16::MAX;

/// For each of the four words of a cell: the lane that touches it, [`SEVERAL`] or [`UNKNOWN`].
pub(crate) type Words = [u8; 4];
/// More than one lane touches the whole word.
pub(crate) const SEVERAL: u8 = 0xfe;
/// No lane touches the word, or several lanes touch parts of it.
pub(crate) const UNKNOWN: u8 = 0xff;

/// Whether two different lanes accessed the same word.
fn lanes_differ(first: Words, second: Words) -> bool {
    first.iter().zip(second).any(|(&a, b)| a != UNKNOWN && b != UNKNOWN && (a != b || a == SEVERAL))
}

/// The strength of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    /// `volatile`: strong between warps, but without order between lanes of a warp.
    Volatile,
    Strong(Scope),
}

/// The threads whose strong accesses need no order with a strong access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Nobody,
    Block,
    All,
}

impl From<Order> for Strength {
    fn from(order: Order) -> Strength {
        match order {
            Order { strong: false, .. } => Strength::Weak,
            Order { volatile: true, .. } => Strength::Volatile,
            Order { scope, .. } => Strength::Strong(scope),
        }
    }
}

/// One access of one warp, or of its asynchronous copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub block: u32,
    pub agent: u16,
    pub strength: Strength,
    pub words: Words,
    pub clock: u32,
    pub site: u32,
    /// Number of barriers and `bar.warp.sync`s that the warp has passed.
    pub epoch: u32,
    /// Whether the access is an asynchronous copy in flight.
    pub pending: bool,
}

/// The size of a stamp matters: if only one block reads memory, or if memory is only written, stamps take 1.5
/// bytes per byte of memory.
const _: () = assert!(size_of::<Stamp>() == 24);

impl Stamp {
    pub const NONE: Stamp = Stamp {
        block: 0,
        agent: NOBODY,
        strength: Strength::Weak,
        words: [UNKNOWN; 4],
        clock: 0,
        site: u32::MAX,
        epoch: 0,
        pending: false,
    };

    pub fn is_none(&self) -> bool {
        self.agent == NOBODY
    }
    pub fn same_agent(&self, other: &Stamp) -> bool {
        self.block == other.block && self.agent == other.agent
    }

    /// The accesses with which this access needs no order.
    pub fn reach(&self) -> Reach {
        match self.strength {
            Strength::Weak => Reach::Nobody,
            Strength::Strong(Scope::Block) => Reach::Block,
            Strength::Volatile | Strength::Strong(Scope::Device) => Reach::All,
        }
    }

    /// Whether the two accesses need no order, because both are strong, in scopes that include each other.
    pub fn morally_strong(&self, other: &Stamp) -> bool {
        match self.reach().min(other.reach()) {
            Reach::Nobody => false,
            Reach::Block => self.block == other.block,
            Reach::All => true,
        }
    }

    /// Whether the reach of this access includes the reach of the later access
    /// `other`.
    pub fn reaches_as_far(&self, other: &Stamp) -> bool {
        let same = other.reach() != Reach::Block || self.reach() == Reach::All || self.block == other.block;
        self.reach() >= other.reach() && same
    }

    /// Whether two lanes of one warp access the same word without order between them; `words` belong to the
    /// later access.
    pub fn lanes_race(&self, other: &Stamp, words: Words) -> bool {
        let volatile = [self, other].iter().all(|stamp| stamp.strength == Strength::Volatile);
        self.epoch == other.epoch
            && lanes_differ(self.words, words)
            && (volatile || !self.morally_strong(other))
    }
}
