//! Race detection: who wrote and read each byte last, against what the accessing warp knows.
//!
//! The unit is a cell of 16 bytes, what one lane of `ldmatrix` or `cp.async` touches. A cell that is accessed
//! in parts is split into words, or into bytes.

use std::collections::BTreeMap;

use crate::stamp::{SEVERAL, Stamp, Strength, UNKNOWN};

/// Bytes of a cell.
pub(crate) const CELL: usize = 16;
/// All bytes of a cell.
const WHOLE: u16 = u16::MAX;

/// Says of an earlier access whether it is ordered before what happens now.
pub(crate) trait Knows {
    fn knows(&self, stamp: &Stamp) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// By one instruction of the whole warp, such as `ldmatrix`, which its later writes cannot overtake.
    Collective,
    /// Through the read-only path: nobody may write in this launch.
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
    /// A read-only read of what this launch writes.
    Written,
    /// Two lanes of the warp: the other wrote, this one reads.
    LaneReads,
    /// The other read, this one writes.
    LaneOverwrites,
    /// Both write.
    LanesWrite,
}

/// A conflict with an earlier access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    pub kind: HazardKind,
    pub first: Stamp,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    write: Stamp,
    pending: bool,
}

impl Record {
    const NONE: Record = Record { write: Stamp::NONE, pending: false };
}

/// Where the reads of a record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// One slot for each of so many warps of one block.
    Warps(usize),
    /// The last one, and one of another block: enough, as nothing orders the blocks.
    Last,
    /// All that nothing has ordered yet: blocks may wait for each other.
    All,
}

#[derive(Debug)]
pub(crate) struct Shadow {
    readers: Readers,
    /// Cells in all.
    count: usize,
    /// First record of each cell, and how often it is split in two: 0, 2 (words) or 4 (bytes). Empty until
    /// one is split.
    cells: Vec<(u32, u8)>,
    /// Empty until somebody writes.
    records: Vec<Record>,
    /// Slots of each record: see [`Readers`].
    reads: Vec<Stamp>,
    /// Further reads, by record and agent.
    more: BTreeMap<(u32, u32, u16), Stamp>,
}

impl Shadow {
    pub fn new(cells: usize, readers: Readers) -> Shadow {
        let mut shadow = Shadow {
            readers,
            count: cells,
            cells: Vec::new(),
            records: Vec::new(),
            reads: Vec::new(),
            more: BTreeMap::new(),
        };
        shadow.reads = vec![Stamp::NONE; cells * shadow.slots()];
        shadow
    }

    /// Slots of one record.
    fn slots(&self) -> usize {
        match self.readers {
            Readers::Warps(warps) => warps,
            Readers::Last | Readers::All => 2,
        }
    }

    fn split(&mut self, cell: usize, depth: u8) {
        let slots = self.slots();
        self.records.resize(self.reads.len() / slots, Record::NONE);
        let (old, from) = self.cells[cell];
        self.cells[cell] = (self.records.len() as u32, depth);
        for part in 0..1usize << depth {
            let at = old as usize + (part >> (depth - from));
            let word = part >> (depth - 2);
            let of_part = |stamp: Stamp| Stamp { words: [stamp.words[word]; 4], ..stamp };
            let Record { write, pending } = self.records[at];
            let new = self.records.len() as u32;
            self.records.push(Record { write: of_part(write), pending });
            for slot in 0..slots {
                self.reads.push(of_part(self.reads[at * slots + slot]));
            }
            let more: Vec<_> = self.more.range(all_of(at)).map(|(key, read)| (*key, *read)).collect();
            self.more.extend(
                more.into_iter().map(|((_, block, agent), read)| ((new, block, agent), of_part(read))),
            );
        }
        for part in 0..1 << from {
            self.forget_more(old as usize + part, |_| false);
        }
    }

    /// The records of the bytes `mask` of `cell`: the first, how deep the cell is split, and which parts.
    #[inline]
    fn records(&mut self, cell: usize, mask: u16) -> (usize, u8, u16) {
        if self.cells.is_empty() {
            if mask == WHOLE {
                return (cell, 0, 1);
            }
            self.cells = (0..self.count as u32).map(|cell| (cell, 0)).collect();
        }
        if mask == WHOLE && self.cells[cell].1 == 0 {
            return (self.cells[cell].0 as usize, 0, 1);
        }
        let words = (0..4).filter(|word| mask >> (4 * word) & 15 != 0);
        let words: u16 = words.fold(0, |words, word| words | 1 << word);
        let whole_words = words.count_ones() * 4 == mask.count_ones();
        let needed = if mask == WHOLE {
            0
        } else if whole_words {
            2
        } else {
            4
        };
        if self.cells[cell].1 < needed {
            self.split(cell, needed);
        }
        let (base, depth) = self.cells[cell];
        let parts = match depth {
            0 => 1,
            2 => words,
            _ => mask,
        };
        (base as usize, depth, parts)
    }

    /// Checks and notes an access to the bytes `mask` of `cell`, of which `changed` get another value; the
    /// first conflict.
    #[inline]
    pub fn access(
        &mut self,
        now: &impl Knows,
        cell: usize,
        (mask, changed): (u16, u16),
        actor: Stamp,
        access: Access,
    ) -> Option<Hazard> {
        let (base, depth, mut parts) = self.records(cell, mask);
        let mut found = None;
        while parts != 0 {
            let part = parts.trailing_zeros() as usize;
            parts &= parts - 1;
            let (words, changes) = match depth {
                0 => (actor.words, changed != 0),
                2 => ([actor.words[part]; 4], changed >> (4 * part) & 15 != 0),
                _ => ([actor.words[part / 4]; 4], changed >> part & 1 != 0),
            };
            let actor = Stamp { words, ..actor };
            let hazard = self.check(now, base + part, &actor, access, changes);
            found = found.or(hazard);
            self.note(now, base + part, actor, access);
        }
        found
    }

    #[inline]
    fn check(
        &self,
        now: &impl Knows,
        at: usize,
        actor: &Stamp,
        access: Access,
        changes: bool,
    ) -> Option<Hazard> {
        let Record { write, pending } = self.records.get(at).unwrap_or(&Record::NONE);
        // Who writes what is there already disturbs no other writer.
        let reads = access.reads();
        let counts = reads || changes;
        if !write.is_none() {
            let hazard = |kind| Some(Hazard { kind, first: *write });
            if *pending {
                return hazard(HazardKind::Pending);
            }
            if access == Access::ReadOnly {
                return hazard(HazardKind::Written);
            }
            if write.same_agent(actor) {
                if counts && write.lanes_race(actor) {
                    return hazard(if reads { HazardKind::LaneReads } else { HazardKind::LanesWrite });
                }
            } else if counts && !write.morally_strong(actor) && !now.knows(write) {
                return hazard(if reads { HazardKind::ReadAfterWrite } else { HazardKind::WriteAfterWrite });
            }
        }
        if reads {
            return None;
        }
        let slots = self.slots();
        let inline = &self.reads[at * slots..(at + 1) * slots];
        let found = inline.iter().filter(|read| !read.is_none()).chain(self.more_of(at)).find_map(|read| {
            if read.same_agent(actor) {
                read.lanes_race(actor).then_some((HazardKind::LaneOverwrites, *read))
            } else {
                let races = !read.morally_strong(actor) && !now.knows(read);
                races.then_some((HazardKind::WriteAfterRead, *read))
            }
        });
        found.map(|(kind, first)| Hazard { kind, first })
    }

    #[inline]
    fn note(&mut self, now: &impl Knows, at: usize, mut actor: Stamp, access: Access) {
        if !access.reads() {
            if self.records.is_empty() {
                self.records.resize(self.reads.len() / self.slots(), Record::NONE);
            }
            self.records[at] = Record { write: actor, pending: access == Access::Copy };
            self.forget_more(at, |read| !now.knows(read));
            return;
        }
        if access == Access::Collective {
            actor.words = [UNKNOWN; 4];
        }
        if let Readers::Warps(warps) = self.readers {
            return merge_read(&mut self.reads[at * warps + usize::from(actor.agent)], actor);
        }
        let last = self.reads[2 * at];
        if !last.is_none() && last.block != actor.block && self.readers == Readers::Last {
            self.forget_more(at, |_| false);
            self.reads[2 * at + 1] = last;
        } else if !(last.is_none() || last.same_agent(&actor) || now.knows(&last)) {
            let key = |stamp: &Stamp| (at as u32, stamp.block, stamp.agent);
            self.more.insert(key(&last), last);
            self.reads[2 * at] = self.more.remove(&key(&actor)).unwrap_or(Stamp::NONE);
        }
        merge_read(&mut self.reads[2 * at], actor);
    }

    fn more_of(&self, at: usize) -> impl Iterator<Item = &Stamp> {
        let any = !self.more.is_empty();
        any.then(|| self.more.range(all_of(at))).into_iter().flatten().map(|(_, read)| read)
    }

    /// Keeps of the further reads of a record those that `keep` says.
    fn forget_more(&mut self, at: usize, keep: impl Fn(&Stamp) -> bool) {
        if self.more.is_empty() {
            return;
        }
        let gone: Vec<_> =
            self.more.range(all_of(at)).filter(|(_, read)| !keep(read)).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| {
            self.more.remove(key);
        });
    }

    /// An asynchronous copy has landed: from now on it counts as a write by `agent`.
    pub fn complete(&mut self, cell: usize, mask: u16, agent: u16, clock: u32, epoch: u32) {
        let (base, _, mut parts) = self.records(cell, mask);
        while parts != 0 {
            let record = self.records.get_mut(base + parts.trailing_zeros() as usize);
            parts &= parts - 1;
            if let Some(record) = record.filter(|record| record.pending) {
                record.pending = false;
                record.write = Stamp { agent, clock, epoch, ..record.write };
            }
        }
    }
}

/// Keys of the further reads of a record.
fn all_of(at: usize) -> std::ops::RangeInclusive<(u32, u32, u16)> {
    (at as u32, 0, 0)..=(at as u32, u32::MAX, u16::MAX)
}

/// A warp reads again: of one epoch, all lanes that read count.
fn merge_read(read: &mut Stamp, mut actor: Stamp) {
    if !read.is_none() && read.epoch == actor.epoch && read.same_agent(&actor) {
        for (word, earlier) in actor.words.iter_mut().zip(read.words) {
            *word = match (*word, earlier) {
                (now, UNKNOWN) => now,
                (UNKNOWN, earlier) => earlier,
                (now, earlier) if now == earlier => now,
                _ => SEVERAL,
            };
        }
        // A strong read does not excuse the weak one before it.
        if read.strength == Strength::Weak {
            actor.strength = Strength::Weak;
        }
    }
    *read = actor;
}
