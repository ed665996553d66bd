//! Bulk copies: `cp.async.bulk`, with tensor maps and without. Loads are in flight until their mbarrier's
//! phase ends, and land when nobody else can go on; stores until their group is waited for, and read their
//! source then.

mod region;

pub(crate) use region::{Copy, Load, Store};

use super::{
    Block,
    check::Engine,
    memory::{LaneAccess, shared_cells},
    order::Handover,
    touched::Touched,
    warp::Warp,
};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    op::{Addr, Bulk, Order, Region},
    options::Completion,
    regs::{LANES, lanes},
    report::{Address, Kind},
    shadow::{Access, CELL},
};

impl<'a> Block<'a> {
    pub(super) fn bulk(&mut self, warp: &mut Warp<'a>, bulk: &Bulk, mask: u32) {
        match bulk {
            Bulk::Load { to, from, mbar } => {
                let to = self.addresses(warp, to, mask);
                for lane in lanes(mask) {
                    if let Some(copy) = self.copy(warp, from, to[lane], lane) {
                        self.bulk_load(warp, copy, mbar);
                    }
                }
            }
            Bulk::Store { from, to } => {
                let from = self.addresses(warp, from, mask);
                for lane in lanes(mask) {
                    if let Some(copy) = self.copy(warp, to, from[lane], lane) {
                        self.bulk_store(warp, copy);
                    }
                }
            }
            Bulk::Commit => lanes(mask).for_each(|lane| warp.bulk_commits[lane] += 1),
            Bulk::Wait(keep) => self.bulk_wait(warp, *keep, mask),
            Bulk::Prefetch { map } => {
                let at = self.addresses(warp, map, mask);
                for lane in lanes(mask) {
                    self.tensor_map(warp, at[lane], lane);
                }
            }
        }
    }

    fn bulk_load(&mut self, warp: &mut Warp<'a>, copy: Copy, mbar: &Addr) {
        let lane = copy.lane;
        let Some(&(_, at)) = self.mbar_addresses(warp, mbar, 1 << lane).first() else { return };
        let Some(bar) = self.mbar_object(warp, at, lane) else { return };
        let (phase, shown) = (bar.phase(), bar.shown);
        if !shown {
            let what = "counts a bulk copy, with no fence.mbarrier_init after its initialisation";
            self.mbar_error(warp, at, lane, what);
        }
        if !self.check_rows(warp, &copy) {
            return;
        }
        let mut offsets = copy.chunks();
        loop {
            let mut touched = Touched::new();
            offsets
                .by_ref()
                .take(2 * LANES)
                .for_each(|at| touched.add(shared_cells(at), CELL, lane, u64::MAX));
            if touched.cells().is_empty() {
                break;
            }
            let (row, proxy) = (self.clocks.row(warp.index).to_vec(), self.views[warp.index].proxy.clone());
            let clock = self.clocks.now(warp.index);
            let engine = Engine { agent: warp.index, clock, row: &row, proxy: &proxy };
            self.check_engine(warp, Some(engine), &touched, Access::Copy, Order::default());
        }
        drop(offsets);
        self.loads.push_back(Load { copy, warp: warp.index, mbar: at, phase });
    }

    /// What a load reads in device memory: false where it cannot.
    fn check_rows(&mut self, warp: &mut Warp<'a>, copy: &Copy) -> bool {
        let lane = copy.lane;
        for row in copy.rows.iter().filter(|row| row.bytes > 0) {
            let Ok((allocation, offset)) = self.context.memory.resolve(row.address, row.bytes as usize)
            else {
                self.fault(warp, Space::Global, row.address, row.bytes as usize, lane, "bulk copy");
                return false;
            };
            let mut data = vec![0; row.bytes as usize];
            if allocation.load(offset, &mut data) != 0
                && let Some(at) = (0..data.len()).find(|at| !allocation.is_written(offset + at))
            {
                self.uninitialised_global(warp, row.address + at as u64, lane);
            }
        }
        let parts = copy.rows.iter().flat_map(|row| region::cells(row.address, row.bytes));
        let parts: Vec<_> = parts.collect();
        for parts in parts.chunks(2 * LANES) {
            let mut touched = Touched::new();
            parts.iter().for_each(|&(at, bytes)| touched.add(at, bytes, lane, 0));
            self.check_access(warp, &touched, Access::Read, Order::default());
        }
        true
    }

    /// Lets the oldest load land, or any one.
    pub(super) fn land_load(&mut self) -> bool {
        if self.loads.is_empty() {
            return false;
        }
        let at = match self.context.options.completion {
            Completion::Random => self.random.below(self.loads.len()),
            Completion::Late | Completion::Eager => 0,
        };
        let Some(Load { copy, warp, mbar: at, phase }) = self.loads.remove(at) else { return false };
        for (number, row) in copy.rows.iter().enumerate() {
            let mut data = copy.blank();
            let (skip, bytes) = (row.skip as usize, row.bytes as usize);
            if let Ok((allocation, offset)) = self.context.memory.resolve(row.address, bytes)
                && bytes > 0
            {
                allocation.load(offset, &mut data[skip..skip + bytes]);
            }
            for (chunk, to) in data.chunks_exact(CELL).zip(copy.row_chunks(number)) {
                self.shared[to..to + CELL].copy_from_slice(chunk);
            }
        }
        let Some(bar) = self.mbarriers.get_mut(&at) else { return true };
        let agent = *bar.agent.get_or_insert_with(|| {
            self.owners.push(warp);
            self.clocks.add()
        });
        let clock = phase as u32 + 1;
        let in_time = bar.phase() == phase;
        bar.deliver(i64::from(copy.bytes()), &Handover::of(agent, clock));
        for to in copy.chunks() {
            self.shadow.complete(to / CELL, u16::MAX, agent as u16, clock, 0);
        }
        self.moved = true;
        if !in_time {
            let late = "gets the bytes of a bulk copy after the phase in which it was issued: that one \
                        expected too few";
            self.of_warp(warp, copy.site, |block, warp| block.mbar_error(warp, at, copy.lane, late));
        }
        true
    }

    /// Reports something that `warp` did at `site`, while it is not running.
    fn of_warp(&mut self, warp: usize, site: u32, say: impl FnOnce(&mut Self, &Warp<'a>)) {
        let Some(mut found) = self.warps[warp].take() else { return };
        let here = std::mem::replace(&mut found.site, site);
        say(self, &found);
        found.site = here;
        self.warps[warp] = Some(found);
    }

    /// The block has ended: what is still under way writes into the shared memory of another one.
    pub(super) fn loads_left(&mut self) {
        while let Some(Load { copy, warp, .. }) = self.loads.pop_front() {
            let message = "the block ends while this bulk copy is under way".to_string();
            let lanes = 1 << copy.lane;
            self.of_warp(warp, copy.site, |block, warp| {
                block.report(warp, Kind::UnwaitedCopies, lanes, None, message);
            });
        }
    }

    fn bulk_store(&mut self, warp: &mut Warp<'a>, copy: Copy) {
        let outside = |row: &&crate::tensor_map::Row| {
            row.bytes > 0 && self.context.memory.resolve(row.address, row.bytes as usize).is_err()
        };
        if let Some(&row) = copy.rows.iter().find(outside) {
            return self.fault(warp, Space::Global, row.address, row.bytes as usize, copy.lane, "bulk copy");
        }
        let agent = self.agents.outbox(warp.index);
        let (row, proxy) = (self.clocks.row(warp.index).to_vec(), self.views[warp.index].proxy.clone());
        let number = self.clocks.now(agent);
        let engine = Engine { agent, clock: number, row: &row, proxy: &proxy };
        let used = (0..copy.rows.len()).filter(|&at| copy.rows[at].bytes > 0);
        let offsets: Vec<usize> = used.flat_map(|at| copy.row_chunks(at)).collect();
        for offsets in offsets.chunks(2 * LANES) {
            let mut touched = Touched::new();
            offsets.iter().for_each(|&at| touched.add(shared_cells(at), CELL, copy.lane, 0));
            self.check_engine(warp, Some(engine), &touched, Access::Collective, Order::default());
        }
        self.clocks.tick(agent, warp.site);
        let eager = match self.context.options.completion {
            Completion::Eager => true,
            Completion::Late => false,
            Completion::Random => self.random.next() & 1 == 0,
        };
        let mut store = Store { group: warp.bulk_commits[copy.lane], copy, number, landed: false };
        if eager {
            self.land_store(warp, &mut store);
        }
        warp.stores.push(store);
    }

    fn land_store(&mut self, warp: &mut Warp<'a>, store: &mut Store) {
        if std::mem::replace(&mut store.landed, true) {
            return;
        }
        let copy = &store.copy;
        let here = std::mem::replace(&mut warp.site, copy.site);
        let mut parts = Vec::new();
        for (number, row) in copy.rows.iter().enumerate().filter(|(_, row)| row.bytes > 0) {
            let chunks = copy.row_chunks(number).flat_map(|at| self.shared[at..at + CELL].iter().copied());
            let data: Vec<u8> = chunks.skip(row.skip as usize).take(row.bytes as usize).collect();
            let Ok((allocation, offset)) = self.context.memory.resolve(row.address, data.len()) else {
                continue;
            };
            if allocation.read_only {
                let address = self.address(Space::Global, row.address);
                let message = "bulk store to constant memory".into();
                self.report(warp, Kind::ReadOnly, 1 << copy.lane, Some(address), message);
                continue;
            }
            for (at, bytes) in region::cells(row.address, row.bytes) {
                let from = (at - row.address) as usize;
                let changed = allocation.store(offset + from, &data[from..from + bytes]);
                parts.push((at, bytes, changed));
            }
        }
        for parts in parts.chunks(2 * LANES) {
            let mut touched = Touched::new();
            parts.iter().for_each(|&(at, bytes, changed)| touched.add(at, bytes, copy.lane, changed));
            self.check_access(warp, &touched, Access::Write, Order::default());
        }
        self.moved = true;
        warp.site = here;
    }

    /// All but the last `keep` groups of each lane have landed.
    fn bulk_wait(&mut self, warp: &mut Warp<'a>, keep: u32, mask: u32) {
        let commits = warp.bulk_commits;
        let done = |store: &Store| {
            let lane = store.copy.lane;
            mask >> lane & 1 != 0 && store.group < commits[lane].saturating_sub(keep)
        };
        let mut stores = std::mem::take(&mut warp.stores);
        stores.iter_mut().filter(|store| done(store)).for_each(|store| self.land_store(warp, store));
        stores.retain(|store| !done(store));
        let agent = self.agents.outbox(warp.index);
        let first_left = stores.iter().map(|store| store.number).min().unwrap_or(self.clocks.now(agent));
        self.clocks.learn(warp.index, agent, first_left - 1);
        warp.stores = stores;
    }

    /// Lanes exit: shared memory must last until their stores have read it.
    pub(super) fn bulk_unwaited(&mut self, warp: &mut Warp<'a>, mask: u32) {
        let mut stores = std::mem::take(&mut warp.stores);
        for store in stores.iter_mut().filter(|store| mask >> store.copy.lane & 1 != 0) {
            let exit = std::mem::replace(&mut warp.site, store.copy.site);
            let message = format!("warp {} exits without having waited for this store", warp.index);
            self.report(warp, Kind::UnwaitedCopies, 1 << store.copy.lane, None, message);
            warp.site = exit;
            self.land_store(warp, store);
        }
        stores.retain(|store| mask >> store.copy.lane & 1 == 0);
        warp.stores = stores;
    }
}
