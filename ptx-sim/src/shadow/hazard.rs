//! Pairs of unordered accesses: their kinds, and the pairs that are errors.

use crate::stamp::{Stamp, Words};

/// Says of an earlier access whether it is ordered before what happens now.
pub(crate) trait Knows {
    fn knows(&self, stamp: &Stamp) -> bool;

    /// Whether what happens now sees a write that is ordered before it: through another proxy it may need a
    /// fence.
    fn fenced(&self, write: &Stamp) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// By one instruction of the whole warp, such as `ldmatrix`, which its later writes cannot overtake.
    Collective,
    /// Through the read-only path: no write is allowed in this launch.
    ReadOnly,
    Write,
    /// Read-modify-write.
    Atomic,
    /// The destination of an asynchronous copy, from issue to completion.
    Copy,
}

impl Access {
    pub fn reads(self) -> bool {
        !matches!(self, Access::Write | Access::Atomic | Access::Copy)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HazardKind {
    Pending,
    ReadAfterWrite,
    WriteAfterRead,
    WriteAfterWrite,
    /// A read through the read-only path of a byte that this launch writes, before or after.
    Written,
    /// Two lanes of the warp: the other wrote, this one reads.
    LaneReads,
    /// The other read, this one writes.
    LaneOverwrites,
    /// Both write.
    LanesWrite,
    /// Written through the generic proxy, touched through the asynchronous one, and no fence between.
    Proxy,
}

/// The accessor. The code rarely copies it: a fresh copy is slow to read as a whole.
#[derive(Clone, Copy)]
pub(super) struct Actor<'s> {
    pub stamp: &'s Stamp,
    /// Instead of the stamp's.
    pub lanes: Words,
}

impl Actor<'_> {
    pub fn stamp(self) -> Stamp {
        Stamp { words: self.lanes, ..*self.stamp }
    }
}

/// A conflict with an earlier access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    pub kind: HazardKind,
    pub first: Stamp,
}

impl Hazard {
    /// In a box: there is none nearly always, and nothing is said faster by one word than by six.
    #[cold]
    pub fn of(kind: HazardKind, first: &Stamp) -> Option<Box<Hazard>> {
        Some(Box::new(Hazard { kind, first: *first }))
    }
}

/// The hazard of an access after `write`. `counts`: the access reads, or changes the byte.
#[inline]
pub(super) fn after_write(
    now: &impl Knows,
    write: &Stamp,
    actor: Actor<'_>,
    access: Access,
    counts: bool,
) -> Option<HazardKind> {
    let reads = access.reads();
    if write.pending {
        return Some(HazardKind::Pending);
    }
    if access == Access::ReadOnly {
        return Some(HazardKind::Written);
    }
    if write.same_agent(actor.stamp) {
        let kind = if reads { HazardKind::LaneReads } else { HazardKind::LanesWrite };
        if counts && write.lanes_race(actor.stamp, actor.lanes) {
            return Some(kind);
        }
    } else if counts && !write.morally_strong(actor.stamp) && !now.knows(write) {
        return Some(if reads { HazardKind::ReadAfterWrite } else { HazardKind::WriteAfterWrite });
    }
    (!now.fenced(write)).then_some(HazardKind::Proxy)
}

/// The hazard of a write after `read`.
#[inline]
pub(super) fn after_read(now: &impl Knows, read: &Stamp, actor: Actor<'_>) -> Option<HazardKind> {
    if read.same_agent(actor.stamp) {
        return read.lanes_race(actor.stamp, actor.lanes).then_some(HazardKind::LaneOverwrites);
    }
    (!read.morally_strong(actor.stamp) && !now.knows(read)).then_some(HazardKind::WriteAfterRead)
}
