//! Defines the kinds of pairs of unordered accesses, and decides which pairs are errors.

use crate::stamp::{Stamp, Words};

/// Decides whether an earlier access is ordered before the current access.
pub(crate) trait Knows {
    fn knows(&self, stamp: &Stamp) -> bool;

    /// Whether the current access sees a write that is ordered before it. If the two accesses use different
    /// proxies, the current access sees the write only after a fence.
    fn fenced(&self, write: &Stamp) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// An access by one instruction of the whole warp, such as `ldmatrix`. Later writes of the warp cannot
    /// overtake this access.
    Collective,
    /// An access through the read-only path. No thread may write the memory in this launch.
    ReadOnly,
    Write,
    /// An atomic read-modify-write.
    Atomic,
    /// A write to the destination of an asynchronous copy, from issue to completion.
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
    /// The read-only path has read a byte that this launch writes, earlier or later.
    Written,
    /// Two lanes of one warp: the other lane wrote, this lane reads.
    LaneReads,
    /// Two lanes of one warp: the other lane read, this lane writes.
    LaneOverwrites,
    /// Two lanes of one warp: both write.
    LanesWrite,
    /// An access through the asynchronous proxy after a write through the generic proxy, without a fence
    /// between them.
    Proxy,
}

/// The access that is being checked, with its agent. The code passes it by reference, because the processor
/// reads a fresh copy slowly.
#[derive(Clone, Copy)]
pub(super) struct Actor<'s> {
    pub stamp: &'s Stamp,
    /// The lanes of this access, which replace the lanes in the stamp.
    pub lanes: Words,
}

impl Actor<'_> {
    pub fn stamp(self) -> Stamp {
        Stamp { words: self.lanes, ..*self.stamp }
    }
}

/// A conflict between an access and an earlier access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    pub kind: HazardKind,
    pub first: Stamp,
}

impl Hazard {
    /// A hazard in a box. Hazards are rare, and a result of one word returns faster than one of six words.
    #[cold]
    pub fn of(kind: HazardKind, first: &Stamp) -> Option<Box<Hazard>> {
        Some(Box::new(Hazard { kind, first: *first }))
    }
}

/// The hazard, if any, of an access after `write`. `counts` states whether the access reads or changes the
/// byte.
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

/// The hazard, if any, of a write after `read`.
#[inline]
pub(super) fn after_read(now: &impl Knows, read: &Stamp, actor: Actor<'_>) -> Option<HazardKind> {
    if read.same_agent(actor.stamp) {
        return read.lanes_race(actor.stamp, actor.lanes).then_some(HazardKind::LaneOverwrites);
    }
    (!read.morally_strong(actor.stamp) && !now.knows(read)).then_some(HazardKind::WriteAfterRead)
}
