//! Executes bulk copies (TMA): `cp.async.bulk`, with and without tensor maps. A load is in flight until its
//! mbarrier's phase ends. The simulator completes the load when no warp can proceed. A store is in flight
//! until its thread waits for its group. The store reads its source at this wait.

mod region;
mod store;

pub(crate) use region::{Copy, Load, Store};

use super::{
    Block,
    check::Engine,
    mbarrier::Fed,
    memory::{LaneAccess, shared_cells},
    order::Handover,
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
            Bulk::Store { from, to, reduction } => {
                let from = self.addresses(warp, from, mask);
                for lane in lanes(mask) {
                    if let Some(copy) = self.copy(warp, to, from[lane], lane) {
                        self.bulk_store(warp, copy, *reduction);
                    }
                }
            }
            Bulk::Commit => lanes(mask).for_each(|lane| warp.bulk_commits[lane] += 1),
            Bulk::Wait { keep, read } => self.bulk_wait(warp, *keep, *read, mask),
            Bulk::Map { map } => {
                let at = self.addresses(warp, map, mask);
                for lane in lanes(mask) {
                    self.tensor_map(warp, at[lane], lane);
                }
            }
            Bulk::Prefetch { from } => {
                for lane in lanes(mask) {
                    self.region(warp, from, lane);
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
            let what = "counts a TMA copy without fence.mbarrier_init after its initialisation: execute this \
                        fence between the two";
            self.mbar_error(warp, at, lane, what);
        }
        let agent = self.mbar_agent(at, warp.index);
        if !self.check_rows(warp, &copy, (agent, phase as u32 + 1)) {
            return;
        }
        let mut offsets = copy.chunks();
        loop {
            let mut touched = self.touched();
            offsets
                .by_ref()
                .take(2 * LANES)
                .for_each(|at| touched.add(shared_cells(at), CELL, lane, u64::MAX));
            if touched.cells().is_empty() {
                break;
            }
            let (row, proxy) = (self.clocks.row(warp.index).to_vec(), self.views[warp.index].proxy.clone());
            let clock = self.clocks.now(warp.index);
            let engine = Engine { agent: warp.index, clock, row: &row, others: None, proxy: Some(&proxy) };
            self.check_engine(warp, Some(engine), touched, Access::Copy, Order::default());
        }
        drop(offsets);
        self.loads.push_back(Load { copy, warp: warp.index, mbar: at, phase });
    }

    /// Checks the device memory that a load reads. Returns false if the load is illegal. The load may read
    /// until its phase ends. A warp that has waited for the phase knows that the load no longer reads.
    fn check_rows(&mut self, warp: &mut Warp<'a>, copy: &Copy, (agent, clock): (usize, u32)) -> bool {
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
            self.follows_wait(warp, row.address, data.len(), lane, false);
        }
        let parts = copy.rows.iter().flat_map(|row| region::cells(row.address, row.bytes));
        let parts: Vec<_> = parts.collect();
        let row = self.clocks.row(warp.index).to_vec();
        let engine = Engine { agent, clock, row: &row, others: None, proxy: None };
        for parts in parts.chunks(2 * LANES) {
            let mut touched = self.touched();
            parts.iter().for_each(|&(at, bytes)| touched.add(at, bytes, lane, 0));
            self.check_engine(warp, Some(engine), touched, Access::Read, Order::default());
        }
        true
    }

    /// The agent of the mbarrier at `at`, for which `warp` issues a copy.
    fn mbar_agent(&mut self, at: u32, warp: usize) -> usize {
        let known = self.mbarriers.get(&at).and_then(|bar| bar.agent);
        known.unwrap_or_else(|| {
            self.owners.push(warp);
            let agent = self.clocks.add();
            if let Some(bar) = self.mbarriers.get_mut(&at) {
                bar.agent = Some(agent);
            }
            agent
        })
    }

    /// Completes one load: the oldest load, or a random load.
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
        let agent = self.mbar_agent(at, warp);
        let Some(bar) = self.mbarriers.get_mut(&at) else { return true };
        let clock = phase as u32 + 1;
        let in_time = bar.phase() == phase;
        let fed = Fed { warp, site: copy.site, lane: copy.lane, phase: bar.phase() };
        bar.deliver(i64::from(copy.bytes()), fed, &Handover::of(agent, clock));
        for to in copy.chunks() {
            self.shadow.complete(to / CELL, u16::MAX, agent as u16, clock, 0);
        }
        self.moved = true;
        if !in_time {
            let late = "gets the bytes of a bulk copy after the phase in which the copy was issued: that \
                        phase expected too few bytes";
            self.of_warp(warp, copy.site, |block, warp| block.mbar_error(warp, at, copy.lane, late));
        }
        true
    }

    /// Makes a report about an action of `warp` at `site` while the warp is not running.
    pub(super) fn of_warp(&mut self, warp: usize, site: u32, say: impl FnOnce(&mut Self, &Warp<'a>)) {
        let Some(mut found) = self.warps[warp].take() else { return };
        let here = std::mem::replace(&mut found.site, site);
        say(self, &found);
        found.site = here;
        self.warps[warp] = Some(found);
    }
}
