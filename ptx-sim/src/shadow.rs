//! Race detection in shared memory: who wrote and read each byte last, against vector clocks.
//!
//! The unit is a cell of 16 bytes, what one lane of `ldmatrix` or `cp.async` touches. A cell that is accessed in parts is split into bytes.

/// Bytes of a cell.
pub(crate) const CELL: usize = 16;
/// All bytes of a cell.
const WHOLE: u16 = u16::MAX;
const NOBODY: u16 = u16::MAX;

/// Vector clocks. Agents are the warps and, behind them, each warp's asynchronous copies.
#[derive(Debug)]
pub(crate) struct Clocks {
    n: usize,
    rows: Vec<u32>,
    /// For each agent the site of the synchronisation that began each of its clock values.
    log: Vec<Vec<u32>>,
}

impl Clocks {
    pub fn new(agents: usize) -> Clocks {
        let mut rows = vec![0; agents * agents];
        (0..agents).for_each(|agent| rows[agent * agents + agent] = 1);
        Clocks { n: agents, rows, log: vec![vec![u32::MAX]; agents] }
    }

    pub fn now(&self, agent: usize) -> u32 {
        self.rows[agent * self.n + agent]
    }

    /// What `agent` knows of `other`.
    pub fn known(&self, agent: usize, other: usize) -> u32 {
        self.rows[agent * self.n + other]
    }

    pub fn row(&self, agent: usize) -> &[u32] {
        &self.rows[agent * self.n..(agent + 1) * self.n]
    }

    /// `agent` learns all that `from` holds.
    pub fn join(&mut self, agent: usize, from: &[u32]) {
        let row = &mut self.rows[agent * self.n..(agent + 1) * self.n];
        row.iter_mut().zip(from).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
    }

    /// What `agent` does from now on is later than what it published.
    pub fn tick(&mut self, agent: usize, site: u32) {
        self.rows[agent * self.n + agent] += 1;
        self.log[agent].push(site);
    }

    /// The synchronisation before `agent`'s clock value `at`.
    pub fn last_sync(&self, agent: usize, at: u32) -> Option<u32> {
        let site = self.log.get(agent)?.get((at as usize).checked_sub(1)?)?;
        (*site != u32::MAX).then_some(*site)
    }
}

/// Joins `from` into an accumulator.
pub(crate) fn merge(into: &mut Vec<u32>, from: &[u32]) {
    into.resize(from.len().max(into.len()), 0);
    into.iter_mut().zip(from).for_each(|(a, &b)| *a = b.max(*a));
}

/// Which lane touches each of the four words of a cell: a lane, [`SEVERAL`] or [`UNKNOWN`].
pub(crate) type Words = [u8; 4];
/// More than one lane has all of the word.
pub(crate) const SEVERAL: u8 = 0xfe;
/// No lane, or several have parts of the word.
pub(crate) const UNKNOWN: u8 = 0xff;

/// Whether some word went through the hands of two lanes.
fn lanes_differ(first: Words, second: Words) -> bool {
    first.iter().zip(second).any(|(&a, b)| a != UNKNOWN && b != UNKNOWN && (a != b || a == SEVERAL))
}

/// Who accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor {
    pub warp: usize,
    pub words: Words,
    /// Counts the warp's `bar.warp.sync`s and barriers.
    pub epoch: u32,
    pub site: u32,
    /// All lanes act in one instruction, as in `ldmatrix`.
    pub collective: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// The destination of an asynchronous copy, from issue to completion.
    Copy,
    /// Read-modify-write: ordered among themselves.
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HazardKind {
    Pending,
    ReadAfterWrite,
    WriteAfterRead,
    WriteAfterWrite,
    /// Another lane of the warp wrote.
    Warp,
    /// Another lane of the warp read.
    WarpReadFirst,
}

/// A conflict with an earlier access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    pub kind: HazardKind,
    pub agent: usize,
    pub clock: u32,
    pub site: u32,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    writer: u16,
    pending: bool,
    atomic: bool,
    clock: u32,
    site: u32,
    words: Words,
    epoch: u32,
}

/// A warp's last read of a record.
#[derive(Clone, Copy, Debug)]
struct Read {
    clock: u32,
    site: u32,
    /// Unknown for a collective read such as `ldmatrix`, which later writes of the warp cannot overtake.
    words: Words,
    epoch: u32,
}

const NEVER_READ: Read = Read { clock: 0, site: 0, words: [UNKNOWN; 4], epoch: 0 };

const FRESH: Record =
    Record { writer: NOBODY, pending: false, atomic: false, clock: 0, site: 0, words: [UNKNOWN; 4], epoch: 0 };

#[derive(Debug)]
pub(crate) struct Shadow {
    warps: usize,
    /// First record of each cell; split cells have 16 from there on.
    cells: Vec<u32>,
    split: Vec<bool>,
    records: Vec<Record>,
    /// For each record and warp the last read.
    reads: Vec<Read>,
    /// Written bytes of each cell.
    init: Vec<u16>,
}

impl Shadow {
    /// For `bytes` bytes accessed by `warps` warps.
    pub fn new(bytes: usize, warps: usize) -> Shadow {
        let cells = bytes.div_ceil(CELL);
        Shadow {
            warps,
            cells: (0..cells as u32).collect(),
            split: vec![false; cells],
            records: vec![FRESH; cells],
            reads: vec![NEVER_READ; cells * warps],
            init: vec![0; cells],
        }
    }

    /// Bytes of `mask` that were never written.
    pub fn missing(&self, cell: usize, mask: u16) -> u16 {
        mask & !self.init[cell]
    }

    pub fn initialise(&mut self, cell: usize, mask: u16) {
        self.init[cell] |= mask;
    }

    fn split(&mut self, cell: usize) {
        let old = self.cells[cell] as usize;
        self.cells[cell] = self.records.len() as u32;
        self.split[cell] = true;
        let record = self.records[old];
        for byte in 0..CELL {
            self.records.push(Record { words: [record.words[byte / 4]; 4], ..record });
            for warp in 0..self.warps {
                let read = self.reads[old * self.warps + warp];
                self.reads.push(Read { words: [read.words[byte / 4]; 4], ..read });
            }
        }
    }

    /// The records of the bytes `mask` of `cell`.
    fn records(&mut self, cell: usize, mask: u16) -> (usize, u16) {
        if mask != WHOLE && !self.split[cell] {
            self.split(cell);
        }
        (self.cells[cell] as usize, if self.split[cell] { mask } else { 1 })
    }

    /// Checks and notes an access to the bytes `mask` of `cell`; the first conflict.
    #[inline]
    pub fn access(&mut self, clocks: &Clocks, cell: usize, mask: u16, actor: Actor, access: Access) -> Option<Hazard> {
        let (base, mut bytes) = self.records(cell, mask);
        let mut found = None;
        while bytes != 0 {
            let byte = bytes.trailing_zeros() as usize;
            let at = base + byte;
            bytes &= bytes - 1;
            let words = if self.split[cell] { [actor.words[byte / 4]; 4] } else { actor.words };
            let actor = Actor { words, ..actor };
            let hazard = self.check(clocks, at, actor, access);
            found = found.or(hazard);
            self.note(clocks, at, actor, access);
        }
        found
    }

    fn check(&self, clocks: &Clocks, at: usize, actor: Actor, access: Access) -> Option<Hazard> {
        let record = &self.records[at];
        let hazard =
            |kind| Some(Hazard { kind, agent: usize::from(record.writer), clock: record.clock, site: record.site });
        if record.writer != NOBODY {
            let known = clocks.known(actor.warp, usize::from(record.writer));
            if record.pending {
                return hazard(HazardKind::Pending);
            }
            if record.clock > known && !(record.atomic && access == Access::Atomic) {
                return hazard(if access == Access::Read {
                    HazardKind::ReadAfterWrite
                } else {
                    HazardKind::WriteAfterWrite
                });
            }
            let same_warp = usize::from(record.writer) == actor.warp;
            if access == Access::Read
                && same_warp
                && record.epoch == actor.epoch
                && lanes_differ(record.words, actor.words)
            {
                return hazard(HazardKind::Warp);
            }
        }
        if access != Access::Read {
            let reads = &self.reads[at * self.warps..(at + 1) * self.warps];
            for (warp, &Read { clock, site, words, epoch }) in reads.iter().enumerate() {
                if warp == actor.warp {
                    if epoch == actor.epoch && lanes_differ(words, actor.words) {
                        return Some(Hazard { kind: HazardKind::WarpReadFirst, agent: warp, clock, site });
                    }
                } else if clock > clocks.known(actor.warp, warp) {
                    return Some(Hazard { kind: HazardKind::WriteAfterRead, agent: warp, clock, site });
                }
            }
        }
        None
    }

    fn note(&mut self, clocks: &Clocks, at: usize, actor: Actor, access: Access) {
        let clock = clocks.now(actor.warp);
        if access == Access::Read {
            let Actor { site, epoch, .. } = actor;
            let read = &mut self.reads[at * self.warps + actor.warp];
            let mut words = if actor.collective { [UNKNOWN; 4] } else { actor.words };
            if read.epoch == epoch {
                for (word, earlier) in words.iter_mut().zip(read.words) {
                    *word = match (*word, earlier) {
                        (now, UNKNOWN) => now,
                        (UNKNOWN, earlier) => earlier,
                        (now, earlier) if now == earlier => now,
                        _ => SEVERAL,
                    };
                }
            }
            *read = Read { clock, site, words, epoch };
        } else {
            self.records[at] = Record {
                writer: actor.warp as u16,
                pending: access == Access::Copy,
                atomic: access == Access::Atomic,
                clock,
                site: actor.site,
                words: actor.words,
                epoch: actor.epoch,
            };
        }
    }

    /// An asynchronous copy has landed: from now on it counts as a write by `agent`.
    pub fn complete(&mut self, clocks: &Clocks, cell: usize, mask: u16, agent: usize, epoch: u32) {
        let (base, mut bytes) = self.records(cell, mask);
        while bytes != 0 {
            let record = &mut self.records[base + bytes.trailing_zeros() as usize];
            bytes &= bytes - 1;
            if record.pending {
                record.pending = false;
                record.writer = agent as u16;
                record.clock = clocks.now(agent);
                record.epoch = epoch;
            }
        }
    }
}
