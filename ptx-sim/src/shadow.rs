//! Race detection, which compares the last writer and readers of each byte with the knowledge of the
//! accessing warp.
//!
//! The unit is a cell of 16 bytes, which one lane accesses with `ldmatrix` or `cp.async`. A partial access
//! splits a cell into words or bytes.

mod hazard;
mod rest;

use crate::stamp::{Reach, SEVERAL, Stamp, Strength, UNKNOWN, Words};
pub(crate) use hazard::{Access, Hazard, HazardKind, Knows};
use hazard::{Actor, after_read, after_write};
use rest::{Rest, Role};

/// Number of bytes of a cell.
pub(crate) const CELL: usize = 16;
/// A mask of all bytes of a cell.
const WHOLE: u16 = u16::MAX;

/// A stamp for each record. A record past the end of its column has no stamp.
#[derive(Debug, Default)]
struct Column(Vec<Stamp>);

impl Column {
    #[inline]
    fn get(&self, at: usize) -> &Stamp {
        self.0.get(at).unwrap_or(&Stamp::NONE)
    }

    /// The stamp of record `at`; there are `all` records.
    #[inline]
    fn slot(&mut self, at: usize, all: usize) -> &mut Stamp {
        if at >= self.0.len() {
            self.0.resize(all, Stamp::NONE);
        }
        &mut self.0[at]
    }
}

/// The reads of each record that the shadow stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The shadow remembers the last read of each warp of one block. The number is the number of warps.
    Warps(usize),
    /// The shadow remembers the last read, and a read of another block. Two reads suffice, because nothing
    /// orders the blocks.
    Last,
    /// The shadow remembers all reads that nothing has ordered yet, because blocks may wait for each other.
    All,
}

/// The accesses to one page or to shared memory. Columns are created at their first use, because most memory
/// is only read, or only written.
#[derive(Debug)]
pub(crate) struct Shadow {
    readers: Readers,
    /// The number of records: a split cell has one record per part.
    count: usize,
    records: usize,
    /// The first record of each cell, and the number of times the cell was split in two: 2 splits give
    /// words, and 4 give bytes. This list is empty until the first split of a cell.
    cells: Vec<(u32, u8)>,
    /// The last writes.
    writes: Column,
    /// The last reads: see [`Readers`].
    reads: Vec<Column>,
    /// The columns of `reads` that have a stamp, in ascending order. Most agents never read shared memory.
    reading: Vec<usize>,
    /// For each column of `reads`, the largest clock of its stamps.
    newest: Vec<u32>,
    /// The first reads through the read-only path.
    constant: Column,
    rest: Rest,
}

impl Shadow {
    pub fn new(cells: usize, readers: Readers) -> Shadow {
        let columns = match readers {
            Readers::Warps(warps) => warps,
            Readers::Last => 2,
            Readers::All => 1,
        };
        Shadow {
            readers,
            count: cells,
            records: cells,
            cells: Vec::new(),
            writes: Column::default(),
            reads: (0..columns).map(|_| Column::default()).collect(),
            reading: Vec::new(),
            newest: vec![0; columns],
            constant: Column::default(),
            rest: Rest::default(),
        }
    }

    fn split(&mut self, cell: usize, depth: u8) {
        let (old, from) = self.cells[cell];
        let first = self.records;
        self.records += 1 << depth;
        self.cells[cell] = (first as u32, depth);
        for part in 0..1usize << depth {
            let (at, new) = (old as usize + (part >> (depth - from)), first + part);
            let word = part >> (depth - 2);
            let of_part = |stamp: &Stamp| Stamp { words: [stamp.words[word]; 4], ..*stamp };
            for column in [&mut self.writes, &mut self.constant].into_iter().chain(&mut self.reads) {
                let stamp = of_part(column.get(at));
                if !stamp.is_none() {
                    *column.slot(new, self.records) = stamp;
                }
            }
            self.rest.copy(at, new, of_part);
        }
        for part in 0..1 << from {
            self.rest.forget(old as usize + part, |_, _| true);
        }
    }

    /// The records for the bytes `mask` of `cell`: the first record, the depth of the split, and the parts.
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
        let any = mask | mask >> 1 | mask >> 2 | mask >> 3;
        let words = any & 1 | any >> 3 & 2 | any >> 6 & 4 | any >> 9 & 8;
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

    /// Checks and records an access by `lanes` to the bytes `mask` of `cell`. The access changes the values
    /// of the bytes `changed`. Returns the first conflict. The lanes of the stamp in `actor` are not used.
    #[inline]
    pub fn access(
        &mut self,
        now: &impl Knows,
        cell: usize,
        (mask, changed): (u16, u16),
        actor: &Stamp,
        lanes: Words,
        access: Access,
    ) -> Option<Box<Hazard>> {
        let (base, depth, mut parts) = self.records(cell, mask);
        let mut found = None;
        while parts != 0 {
            let part = parts.trailing_zeros() as usize;
            parts &= parts - 1;
            let (lanes, changes) = match depth {
                0 => (lanes, changed != 0),
                2 => ([lanes[part]; 4], changed >> (4 * part) & 15 != 0),
                _ => ([lanes[part / 4]; 4], changed >> part & 1 != 0),
            };
            let actor = Actor { stamp: actor, lanes };
            let hazard = self.check(now, base + part, actor, access, changes);
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
        actor: Actor<'_>,
        access: Access,
        changes: bool,
    ) -> Option<Box<Hazard>> {
        let reads = access.reads();
        let write = self.writes.get(at);
        // A write that changes no value conflicts with no other write.
        if !write.is_none()
            && let Some(kind) = after_write(now, write, actor, access, reads || changes)
        {
            return Hazard::of(kind, write);
        }
        if !reads {
            let constant = self.constant.get(at);
            if !constant.is_none() {
                return Hazard::of(HazardKind::Written, constant);
            }
            let columns = self.reading.iter().filter(|&&column| !self.is_known(now, column, actor.stamp));
            let reads = columns.map(|&column| self.reads[column].get(at));
            for read in reads.filter(|read| !read.is_none()) {
                if let Some(kind) = after_read(now, read, actor) {
                    return Hazard::of(kind, read);
                }
            }
        }
        if self.rest.is_empty() { None } else { self.check_rest(now, at, actor, access, changes) }
    }

    /// Whether `writer` knows all reads in a column, so that none of them conflicts with its write. Most
    /// writes follow a barrier, and then need no look at the stamps, which lie far from each other in memory.
    #[inline]
    fn is_known(&self, now: &impl Knows, column: usize, writer: &Stamp) -> bool {
        let agent = column as u16;
        let last = Stamp { block: writer.block, agent, clock: self.newest[column], ..Stamp::NONE };
        matches!(self.readers, Readers::Warps(_)) && agent != writer.agent && now.knows(&last)
    }

    #[cold]
    fn check_rest(
        &self,
        now: &impl Knows,
        at: usize,
        actor: Actor<'_>,
        access: Access,
        changes: bool,
    ) -> Option<Box<Hazard>> {
        let reads = access.reads();
        self.rest.of(at, actor.stamp).find_map(|(role, earlier)| {
            let kind = match role {
                Role::Writes => after_write(now, earlier, actor, access, reads || changes),
                Role::Reads if reads => None,
                Role::Reads => after_read(now, earlier, actor),
            };
            kind.and_then(|kind| Hazard::of(kind, earlier))
        })
    }

    #[inline]
    fn note(&mut self, now: &impl Knows, at: usize, mut actor: Actor<'_>, access: Access) {
        match access {
            Access::Write | Access::Atomic | Access::Copy => return self.note_write(now, at, actor, access),
            // Every write that the shadow still has conflicts with this access.
            Access::ReadOnly => {
                let first = self.constant.slot(at, self.records);
                if first.is_none() {
                    *first = actor.stamp();
                }
                return;
            }
            Access::Collective => actor.lanes = [UNKNOWN; 4],
            Access::Read => {}
        }
        let slot = match self.readers {
            Readers::Warps(_) => usize::from(actor.stamp.agent),
            Readers::All | Readers::Last => 0,
        };
        if self.readers == Readers::Last && !self.reads[1].get(at).is_none() {
            // The shadow stores reads of two blocks. A write races with at least one of them.
            return;
        }
        if self.reads[slot].0.is_empty() {
            self.reads_begin(slot);
        }
        self.newest[slot] = self.newest[slot].max(actor.stamp.clock);
        let last = self.reads[slot].slot(at, self.records);
        if last.is_none() || last.same_agent(actor.stamp) {
            if !(last.is_none() || last.epoch == actor.stamp.epoch || last.reaches_as_far(actor.stamp)) {
                self.rest.add(at, Role::Reads, *last);
            }
            return merge_read(last, actor);
        }
        let earlier = *last;
        if self.readers == Readers::Last && earlier.block != actor.stamp.block {
            *last = actor.stamp();
            if self.reads[1].0.is_empty() {
                self.reads_begin(1);
            }
            *self.reads[1].slot(at, self.records) = earlier;
        } else if now.knows(&earlier) && earlier.reaches_as_far(actor.stamp) {
            *last = actor.stamp();
        } else {
            *last = self.rest.take(at, Role::Reads, actor.stamp).unwrap_or(Stamp::NONE);
            merge_read(last, actor);
            self.rest.add(at, Role::Reads, earlier);
        }
    }

    /// Adds a column of `reads` to the columns that have stamps.
    #[cold]
    fn reads_begin(&mut self, column: usize) {
        let place = self.reading.partition_point(|&other| other < column);
        self.reading.insert(place, column);
    }

    #[inline]
    fn note_write(&mut self, now: &impl Knows, at: usize, actor: Actor<'_>, access: Access) {
        let last = self.writes.slot(at, self.records);
        let new = actor.stamp;
        if !(last.is_none() || last.pending) {
            // Later accesses that are not ordered after `last` must still be checked against it.
            let ordered = last.same_agent(new) || now.knows(last);
            if !(ordered && last.reaches_as_far(new)) {
                if self.readers == Readers::Last && last.block != new.block {
                    // As with reads, nothing orders the blocks.
                    self.rest.forget(at, |role, _| role == Role::Writes);
                }
                self.rest.add(at, Role::Writes, *last);
            }
        }
        *last = Stamp { pending: access == Access::Copy, ..actor.stamp() };
        // Older entries that this access replaces are dropped. Accesses that need no order with any other
        // access need no check.
        if !self.rest.is_empty() && new.reach() != Reach::All {
            self.rest.forget(at, |_, other| other.reaches_as_far(new) && now.knows(other));
        }
    }

    /// Records that an asynchronous copy has landed: from now on, it counts as a write by `agent`.
    pub fn complete(&mut self, cell: usize, mask: u16, agent: u16, clock: u32, epoch: u32) {
        let (base, _, mut parts) = self.records(cell, mask);
        while parts != 0 {
            let write = self.writes.slot(base + parts.trailing_zeros() as usize, self.records);
            parts &= parts - 1;
            if write.pending {
                *write = Stamp { agent, clock, epoch, pending: false, ..*write };
            }
        }
    }
}

/// Merges another read of the same warp into `read`. If both reads are in one epoch, the merged read has the
/// lanes of both.
fn merge_read(read: &mut Stamp, actor: Actor<'_>) {
    if read.is_none() || read.epoch != actor.stamp.epoch || !read.same_agent(actor.stamp) {
        *read = actor.stamp();
        return;
    }
    let (mut words, earlier) = (actor.lanes, *read);
    if words != earlier.words {
        for (word, earlier) in words.iter_mut().zip(earlier.words) {
            *word = match (*word, earlier) {
                (now, UNKNOWN) => now,
                (UNKNOWN, earlier) => earlier,
                (now, earlier) if now == earlier => now,
                _ => SEVERAL,
            };
        }
    }
    *read = Stamp { words, ..*actor.stamp };
    // A strong read does not replace an earlier weak read.
    if earlier.strength == Strength::Weak {
        read.strength = Strength::Weak;
    }
}
