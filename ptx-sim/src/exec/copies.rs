//! Executes `cp.async`. A copy is in flight from its issue until a wait for it.

use super::{
    Block,
    memory::shared_cells,
    touched::Touched,
    warp::{Copies, Pending, Warp},
};
use crate::{
    ast::Space,
    op::{CpAsync, Order},
    options::Completion,
    regs::{LANES, lanes},
    report::Kind,
    shadow::{self, CELL},
};

impl<'a> Block<'a> {
    pub(super) fn cp_async(&mut self, warp: &mut Warp<'a>, copy: &CpAsync, mask: u32) {
        let bytes = copy.bytes as usize;
        let to = self.addresses(warp, &copy.dst, mask);
        let from = self.addresses(warp, &copy.src, mask);
        let mut read = [copy.bytes; LANES];
        if let Some(row) = copy.src_bytes {
            read = *warp.regs().row32(row, mask);
            let more: u32 =
                lanes(mask).filter(|&lane| read[lane] > copy.bytes).fold(0, |all, lane| all | 1 << lane);
            if more != 0 {
                let asked = read[more.trailing_zeros() as usize];
                let message = format!("cp.async of {} bytes reads {asked} of its source", copy.bytes);
                self.report(warp, Kind::OutOfBounds, more, None, message);
            }
            read = read.map(|bytes| bytes.min(copy.bytes));
        }
        if let Some(p) = copy.ignore {
            let ignore = warp.regs().pred(p, mask);
            lanes(ignore & mask).for_each(|lane| read[lane] = 0);
        }
        let mut copies = Copies {
            mask: 0,
            group: warp.commits,
            dst: [0; LANES],
            src: from,
            read: read.map(|bytes| bytes as u8),
            bytes: copy.bytes,
            site: warp.site,
            landed: false,
        };
        let (mut touched, mut sources) = (self.touched(), self.touched());
        for lane in lanes(mask) {
            let Some((_, at)) = self.place(warp, Space::Shared, to[lane], bytes, lane, "cp.async") else {
                continue;
            };
            let Some(offset) = self.shared_offset(at, bytes) else {
                self.fault(warp, Space::Shared, at, bytes, lane, "cp.async");
                continue;
            };
            let read = read[lane] as usize;
            if read > 0 && !self.check_source(warp, (from[lane], bytes, read), lane, &mut sources) {
                continue;
            }
            copies.mask |= 1 << lane;
            copies.dst[lane] = offset as u32;
            touched.add(shared_cells(offset), bytes, lane, u64::MAX);
        }
        self.check_access(warp, sources, shadow::Access::Read, Order::default());
        self.check_access(warp, touched, shadow::Access::Copy, Order::default());
        let eager = match self.context.options.completion {
            Completion::Eager => true,
            Completion::Late => false,
            Completion::Random => self.random.next() & 1 == 0,
        };
        if eager {
            self.transfer(&copies, copies.mask);
            copies.landed = true;
        }
        if copies.mask != 0 {
            warp.pending.push_back(Pending::Copies(Box::new(copies)));
        }
    }

    /// Checks the source of one lane's copy, which reads `read` of `bytes` bytes.
    fn check_source(
        &mut self,
        warp: &mut Warp<'a>,
        (at, bytes, read): (u64, usize, usize),
        lane: usize,
        sources: &mut Touched,
    ) -> bool {
        if self.place(warp, Space::Global, at, bytes, lane, "cp.async").is_none() {
            return false;
        }
        let Ok((allocation, offset)) = self.context.memory.resolve(at, read) else {
            self.fault(warp, Space::Global, at, read, lane, "cp.async");
            return false;
        };
        let mut data = [0; 16];
        let missing = allocation.load(offset, &mut data[..read]);
        if missing != 0 {
            self.uninitialised_global(warp, at + u64::from(missing.trailing_zeros()), lane);
        }
        sources.add(at, read, lane, 0);
        self.follows_wait(warp, at, read, lane, false);
        true
    }

    /// Copies the bytes of the lanes in `mask`.
    fn transfer(&mut self, copies: &Copies, mask: u32) {
        for lane in lanes(mask) {
            let (at, bytes, read) =
                (copies.dst[lane] as usize, copies.bytes as usize, usize::from(copies.read[lane]));
            let mut data = [0; 16];
            if read > 0
                && let Ok((allocation, offset)) = self.context.memory.resolve(copies.src[lane], read)
            {
                allocation.load(offset, &mut data[..read]);
            }
            self.shared[at..at + bytes].copy_from_slice(&data[..bytes]);
        }
    }

    /// Marks the copies of the lanes in `mask` as landed and visible to `agent`.
    fn complete(&mut self, copies: &mut Copies, mask: u32, agent: usize, epoch: u32) {
        if !copies.landed {
            self.transfer(copies, mask);
        }
        for lane in lanes(mask) {
            let (at, bytes) = (copies.dst[lane] as usize, copies.bytes as usize);
            let cell = at / CELL;
            let bits = ((1u32 << (at % CELL + bytes)) - (1u32 << (at % CELL))) as u16;
            self.shadow.complete(cell, bits, agent as u16, self.clocks.now(agent), epoch);
        }
        copies.mask &= !mask;
    }

    /// Marks all groups of each lane as landed, except for its last `keep` groups.
    pub(super) fn cp_wait(&mut self, warp: &mut Warp<'a>, keep: Option<u32>, mask: u32) {
        let limits = warp.commits.map(|commits| keep.map_or(u32::MAX, |keep| commits.saturating_sub(keep)));
        let (engine, epoch) = (self.engine(warp), warp.epoch);
        let mut pending = std::mem::take(&mut warp.pending);
        // Copies before an mbarrier arrival count as accesses of the agent that stands for asynchronous
        // copies. A warp that waits for the mbarrier therefore sees these copies too.
        let watched = pending.iter().rposition(|entry| matches!(entry, Pending::Arrive(_))).unwrap_or(0);
        for (at, entry) in pending.iter_mut().enumerate() {
            if let Pending::Copies(copies) = entry {
                let done = lanes(copies.mask & mask).filter(|&lane| copies.group[lane] < limits[lane]);
                let done = done.fold(0, |mask, lane| mask | 1 << lane);
                if done != 0 {
                    self.complete(copies, done, if at < watched { engine } else { warp.index }, epoch);
                }
            }
        }
        warp.pending = pending;
        // The same holds for groups that have landed before this wait.
        let limit = lanes(mask).map(|lane| limits[lane]).min().unwrap_or(0);
        let waited = warp.watched.iter().take_while(|(group, _)| *group < limit).count();
        if let Some((_, clock)) = warp.watched.drain(..waited).next_back() {
            self.clocks.learn(warp.index, engine, clock);
        }
        if watched > 0 {
            let landed = self.clocks.row(engine).to_vec();
            self.clocks.join(warp.index, &landed);
        }
        self.settle(warp);
    }

    /// The agent that stands for the asynchronous copies of `warp`.
    pub(super) fn engine(&self, warp: &Warp<'_>) -> usize {
        self.agents.engine(warp.index)
    }

    /// Removes landed copies from the front of the queue. The mbarrier arrivals that waited for these copies
    /// then happen.
    fn settle(&mut self, warp: &mut Warp<'a>) {
        while let Some(front) = warp.pending.front() {
            match front {
                Pending::Copies(copies) if copies.mask == 0 => {
                    warp.pending.pop_front();
                }
                Pending::Copies(_) => return,
                Pending::Arrive(_) => {
                    if let Some(Pending::Arrive(arrival)) = warp.pending.pop_front() {
                        self.asynchronous_arrive(warp, &arrival);
                    }
                }
            }
        }
    }

    /// Completes all copies that precede the first mbarrier arrival.
    pub(super) fn land_until_arrive(&mut self, warp: &mut Warp<'a>) {
        let (engine, epoch) = (self.engine(warp), warp.epoch);
        let Some(end) = warp.pending.iter().position(|pending| matches!(pending, Pending::Arrive(_))) else {
            return;
        };
        let mut pending = std::mem::take(&mut warp.pending);
        for entry in pending.iter_mut().take(end) {
            if let Pending::Copies(copies) = entry {
                let group = lanes(copies.mask).map(|lane| copies.group[lane]).max().unwrap_or(0);
                match warp.watched.last_mut() {
                    Some((last, clock)) if *last == group => *clock = self.clocks.now(engine),
                    _ => {
                        // A wait for an older group does not cover this one.
                        self.clocks.step(engine);
                        warp.watched.push((group, self.clocks.now(engine)));
                    }
                }
                self.complete(copies, copies.mask, engine, epoch);
            }
        }
        warp.pending = pending;
        self.settle(warp);
    }

    /// Reports the copies for which exiting lanes have not waited: these copies are lost. An mbarrier keeps
    /// other threads from reading such a copy too early. PTX does not state that a copy outlives its thread.
    pub(super) fn unwaited(&mut self, warp: &mut Warp<'a>, mask: u32) {
        let left = warp.pending.iter().find_map(|pending| match pending {
            Pending::Copies(copies) if copies.mask & mask != 0 => Some((copies.mask & mask, copies.site)),
            _ => None,
        });
        if let Some((lanes, site)) = left {
            let exit = std::mem::replace(&mut warp.site, site);
            let message = format!(
                "warp {} exits without having waited for this copy: execute cp.async.wait_all before",
                warp.index
            );
            self.report(warp, Kind::UnwaitedCopies, lanes, None, message);
            warp.site = exit;
        }
    }
}
