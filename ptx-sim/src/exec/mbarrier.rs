//! Executes `mbarrier` instructions: barriers in shared memory that have phases.

mod object;

use object::MAX_COUNT;
pub(super) use object::{Fed, MBarrier};

use super::{
    Block,
    memory::shared_cells,
    touched::{SHARED_CELLS, Touched},
    warp::{AsyncArrival, Pending, Status, Warp},
};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    op::{Addr, Mbar, Order, Phase},
    regs::{LANES, R, lanes},
    report::{Address, Kind},
    shadow::{self, CELL},
};

const TOO_MANY: &str = "gets more arrivals than its phase expects, or an arrival of a warp that does not \
                        know the previous phase to be complete: raise the count of mbarrier.init, or wait \
                        for the phase first";
const TOO_MUCH: &str = "expects more than 2^20 - 1 bytes, the limit of its transaction count";
const LATE: &str = "is waited for by a warp that is two phases behind: a parity or a state distinguishes \
                    only the current and the previous phase";

const UNKNOWN: &str = "no warp waits until the mbarrier of this TMA load has counted its bytes: the load may \
                       write shared memory after the block's last access; wait for its phase \
                       (mbarrier.try_wait), or do not load";
const NO_STATE: &str = "is asked for the end of a phase that has not begun: wait with a state that \
                        mbarrier.arrive on it has returned";

impl<'a> Block<'a> {
    pub(super) fn mbar(&mut self, warp: &mut Warp<'a>, mbar: &Mbar, mask: u32) {
        match mbar {
            Mbar::Init { addr, count } => self.mbar_init(warp, addr, *count, mask),
            Mbar::Inval { addr } => {
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    self.guard(at, false);
                    match self.mbarriers.remove(&at) {
                        None => self.mbar_error(
                            warp,
                            at,
                            lane,
                            "is invalidated, but was never initialised: execute mbarrier.init first",
                        ),
                        Some(bar) if bar.is_under_way() => {
                            let message = format!("is invalidated in the middle of a phase: {bar}");
                            self.mbar_error(warp, at, lane, &message);
                        }
                        Some(bar) => self.unknown_copies(at, &bar, Some(warp)),
                    }
                }
            }
            Mbar::Arrive { dst, addr, count, expect, drop, no_complete, relaxed } => {
                let counts = count.map_or([1; LANES], |row| *warp.regs().row32(row, mask));
                let bytes = expect.map_or([0; LANES], |row| *warp.regs().row32(row, mask));
                let mut states = [0; LANES];
                let handover = match relaxed {
                    true => self.fenced_handover(warp.index),
                    false => self.handover(warp.index),
                };
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    if !(1..=MAX_COUNT).contains(&counts[lane]) {
                        self.mbar_error(warp, at, lane, "gets a number of arrivals outside of 1 to 2^20 - 1");
                        continue;
                    }
                    let Some(bar) = self.mbar_object(warp, at, lane) else { continue };
                    states[lane] = bar.phase;
                    let countable = bar.owe(i64::from(bytes[lane]));
                    if *drop {
                        bar.dropped = bar.dropped.saturating_add(counts[lane]);
                    }
                    let (number, phase) = (bar.number, bar.phase);
                    let enough = bar.arrive(counts[lane], &handover);
                    let completed = self.mbarriers.get(&at).is_some_and(|bar| bar.phase != phase);
                    if !enough || self.phases_known(warp.index, number) < phase {
                        self.mbar_error(warp, at, lane, TOO_MANY);
                    }
                    if !countable {
                        self.mbar_error(warp, at, lane, TOO_MUCH);
                    }
                    if *no_complete && completed {
                        self.mbar_error(
                            warp,
                            at,
                            lane,
                            "completes its phase with an arrival that has .noComplete",
                        );
                    }
                }
                self.clocks.tick(warp.index, warp.site);
                if let Some(d) = dst {
                    warp.regs().set64(*d, mask, &states);
                }
            }
            Mbar::Test { dst, addr, phase, relaxed } => {
                self.mbar_test(warp, (*dst, addr), (*phase, *relaxed), mask);
            }
            Mbar::CpAsyncArrive { addr, noinc } => {
                let phases = self.views[warp.index].phases.clone();
                let (site, bar, phase) = (warp.site, [0; LANES], [0; LANES]);
                let mut arrival = AsyncArrival { mask: 0, bar, phase, phases, site };
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    let Some(object) = self.mbar_object(warp, at, lane) else { continue };
                    if !noinc {
                        object.left += 1;
                    }
                    (arrival.bar[lane], arrival.phase[lane]) = (at, object.phase);
                    arrival.mask |= 1 << lane;
                    let (number, phase) = (object.number, object.phase);
                    if self.phases_known(warp.index, number) < phase {
                        self.mbar_error(warp, at, lane, TOO_MANY);
                    }
                }
                warp.pending.push_back(Pending::Arrive(Box::new(arrival)));
            }
            Mbar::Transaction { addr, bytes, complete } => {
                let bytes = *warp.regs().row32(*bytes, mask);
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    let Some(bar) = self.mbar_object(warp, at, lane) else { continue };
                    let bytes = i64::from(bytes[lane]);
                    let countable = bar.owe(if *complete { -bytes } else { bytes });
                    if *complete {
                        bar.settle();
                    }
                    if !countable {
                        self.mbar_error(warp, at, lane, TOO_MUCH);
                    }
                }
            }
        }
    }

    /// Number of phases of an mbarrier that `warp` knows to be complete. A warp that arrives without this
    /// knowledge of the previous phase may arrive in the previous phase: that phase then has one arrival too
    /// many, and the next phase one too few.
    fn phases_known(&self, warp: usize, number: u32) -> u64 {
        self.views[warp].phases.get(&number).copied().unwrap_or(0)
    }

    /// The addresses of the lanes, after checks.
    pub(super) fn mbar_addresses(
        &mut self,
        warp: &mut Warp<'a>,
        addr: &Addr,
        mask: u32,
    ) -> Vec<(usize, u32)> {
        let addresses = self.addresses(warp, addr, mask);
        let mut found = Vec::new();
        for lane in lanes(mask) {
            // A 32-bit register contains a shared address; a 64-bit register may contain a generic address.
            let space = if addresses[lane] >> 60 == 1 { Space::Generic } else { Space::Shared };
            let Some((space, at)) = self.place(warp, space, addresses[lane], 8, lane, "mbarrier") else {
                continue;
            };
            if self.shared_offset(at, 8).is_none() {
                self.fault(warp, space, at, 8, lane, "mbarrier");
                continue;
            }
            found.push((lane, at as u32));
        }
        found
    }

    /// The mbarrier that a lane uses, if the mbarrier is initialised and the warp knows of the
    /// initialisation.
    pub(super) fn mbar_object(&mut self, warp: &Warp<'a>, at: u32, lane: usize) -> Option<&mut MBarrier> {
        let Some(bar) = self.mbarriers.get(&at) else {
            self.mbar_error(
                warp,
                at,
                lane,
                "is used before mbarrier.init: initialise it, and execute a barrier after that",
            );
            return None;
        };
        let (by, when, _) = bar.init;
        if by != warp.index && self.clocks.known(warp.index, by) < when {
            self.mbar_error(
                warp,
                at,
                lane,
                "is used without a barrier after mbarrier.init: execute bar.sync between the two",
            );
        }
        self.mbarriers.get_mut(&at)
    }

    pub(super) fn mbar_error(&mut self, warp: &Warp<'a>, at: u32, lane: usize, what: &str) {
        let address = Address { buffer: "shared".into(), offset: i64::from(at) - i64::from(SHARED_BASE) };
        self.report(warp, Kind::Mbarrier, 1 << lane, Some(address), format!("the mbarrier {what}"));
    }

    fn mbar_init(&mut self, warp: &mut Warp<'a>, addr: &Addr, count: u32, mask: u32) {
        let counts = *warp.regs().row32(count, mask);
        let mut touched = self.touched();
        for (lane, at) in self.mbar_addresses(warp, addr, mask) {
            if self.mbarriers.remove(&at).is_some() {
                self.guard(at, false);
                self.mbar_error(warp, at, lane, "is initialised again without mbarrier.inval");
            }
            if counts[lane] == 0 || counts[lane] > MAX_COUNT {
                self.mbar_error(warp, at, lane, "must expect between 1 and 2^20 - 1 arrivals");
            }
            touched.add(shared_cells((at - SHARED_BASE) as usize), 8, lane, u64::MAX);
        }
        // The initialisation is an ordinary write. Other warps need a barrier before they use the mbarrier.
        self.check_access(warp, touched, shadow::Access::Write, Order::default());
        let init = (warp.index, self.clocks.now(warp.index), warp.site);
        for (lane, at) in self.mbar_addresses(warp, addr, mask) {
            let expected = counts[lane].max(1);
            self.initialised += 1;
            let bar =
                MBarrier { number: self.initialised, init, expected, left: expected, ..MBarrier::default() };
            self.mbarriers.insert(at, bar);
            self.guard(at, true);
        }
    }

    fn mbar_test(
        &mut self,
        warp: &mut Warp<'a>,
        (dst, addr): (R, &Addr),
        (phase, relaxed): (Phase, bool),
        mask: u32,
    ) {
        let wanted = match phase {
            Phase::Parity(row) => warp.regs().row32(row, mask).map(u64::from),
            Phase::State(row) => *warp.regs().row64(row, mask),
        };
        let found = self.mbar_addresses(warp, addr, mask);
        // A lane without a valid mbarrier gets a report and does not wait.
        let mut passed = found.iter().fold(mask, |passed, (lane, _)| passed & !(1 << lane));
        let mut waiting = None;
        for (lane, at) in found {
            if matches!(phase, Phase::Parity(_)) && wanted[lane] > 1 {
                self.mbar_error(warp, at, lane, "is asked for a parity that is neither 0 nor 1");
            }
            let Some(bar) = self.mbar_object(warp, at, lane) else {
                passed |= 1 << lane;
                continue;
            };
            let (number, phase_now) = (bar.number, bar.phase);
            let known = self.phases_known(warp.index, number);
            let behind = match phase {
                // A parity names the next phase that the warp does not know to be complete, or else the last
                // phase that the warp knows to be complete.
                Phase::Parity(_) => known & 1 == wanted[lane] & 1 && known + 2 <= phase_now,
                Phase::State(_) => wanted[lane].saturating_add(2) <= phase_now,
            };
            if behind {
                self.mbar_error(warp, at, lane, LATE);
            }
            if matches!(phase, Phase::State(_)) && wanted[lane] > phase_now {
                self.mbar_error(warp, at, lane, NO_STATE);
            }
            let Some(bar) = self.mbarriers.get(&at) else { continue };
            let parity = (wanted[lane] & 1) as usize;
            let complete = match phase {
                Phase::Parity(_) => (bar.phase & 1) as usize != parity,
                Phase::State(_) => bar.phase > wanted[lane],
            };
            if complete {
                let handover = bar.done[parity].clone();
                match relaxed {
                    true => self.take_over_with_fence(warp.index, &handover),
                    false => self.take_over(warp.index, &handover),
                }
                self.views[warp.index].phases.insert(number, phase_now);
                passed |= 1 << lane;
            } else {
                waiting = Some((at, bar.version));
            }
        }
        warp.regs().set_pred(dst, mask, passed);
        match waiting {
            Some(_) if warp.other_lanes(false) => {}
            Some((at, version)) => warp.status = Status::Polling(at, version),
            None => {
                self.clocks.tick(warp.index, warp.site);
                warp.epoch += 1;
                warp.polls = 0;
            }
        }
    }

    /// Completes an arrival of `cp.async.mbarrier.arrive`, whose copies have landed. A waiting warp then sees
    /// the writes of these copies, but no other writes of the issuing warp.
    pub(super) fn asynchronous_arrive(&mut self, warp: &mut Warp<'a>, arrival: &AsyncArrival) {
        let agent = self.engine(warp);
        // Every agent may hand over the knowledge that a phase is complete, because a complete phase stays
        // complete.
        let handover = self.handover(agent).and(&arrival.phases);
        for lane in lanes(arrival.mask) {
            let Some(bar) = self.mbarriers.get_mut(&arrival.bar[lane]) else { continue };
            let late = bar.phase != arrival.phase[lane];
            if !bar.arrive(1, &handover) || late {
                let here = std::mem::replace(&mut warp.site, arrival.site);
                self.mbar_error(warp, arrival.bar[lane], lane, TOO_MANY);
                warp.site = here;
            }
        }
        self.clocks.tick(agent, arrival.site);
    }

    /// Reports the mbarriers that the ended block leaves in the middle of a phase. The arrivals and bytes
    /// that these mbarriers still expect will never come.
    pub(super) fn mbarriers_left(&mut self) {
        if self.stop.is_some() {
            return;
        }
        for (at, bar) in std::mem::take(&mut self.mbarriers) {
            let (by, _, site) = bar.init;
            if !bar.is_under_way() {
                self.unknown_copies(at, &bar, None);
                continue;
            }
            if let Some(mut warp) = self.warps[by].take() {
                warp.site = site;
                self.mbar_error(&warp, at, 0, &format!("is left in the middle of a phase: {bar}"));
                self.warps[by] = Some(warp);
            }
        }
    }

    /// Checks the copies of the mbarrier at `at`, which no longer exists. If no warp knows that a phase is
    /// complete, the copies of the phase may have landed after the block's last access. `running` is the warp
    /// that is being executed.
    fn unknown_copies(&mut self, at: u32, bar: &MBarrier, mut running: Option<&mut Warp<'a>>) {
        let known = self.views.iter().filter_map(|view| view.phases.get(&bar.number)).max().copied();
        let unknown = bar.fed.iter().filter(|fed| known.unwrap_or(0) <= fed.phase);
        for &Fed { warp, site, lane, .. } in unknown {
            let (by, _, init) = bar.init;
            let init = self.earlier(init, by);
            let address = self.address(Space::Shared, at.into());
            let message = UNKNOWN.into();
            let say = |block: &mut Self, warp: &Warp<'a>| {
                block.report_pair(warp, Kind::UnwaitedCopies, 1 << lane, Some(address), Some(init), message);
            };
            match &mut running {
                Some(running) if running.index == warp => {
                    let here = std::mem::replace(&mut running.site, site);
                    say(self, running);
                    running.site = here;
                }
                _ => self.of_warp(warp, site, say),
            }
        }
    }

    /// Reports ordinary accesses to live mbarriers.
    pub(super) fn protect_mbarriers(&mut self, warp: &Warp<'a>, touched: &Touched) {
        if self.mbarriers.is_empty() {
            return;
        }
        for touch in touched.cells() {
            let Some(cell) = touch.cell.checked_sub(SHARED_CELLS) else { continue };
            let live = self.guarded[cell as usize] & touch.mask;
            if live == 0 {
                continue;
            }
            for half in (0..2).filter(|half| live >> (8 * half) & 0xff != 0) {
                let at = cell as u32 * CELL as u32 + SHARED_BASE + 8 * half;
                let lane = touch.lanes.trailing_zeros() as usize % LANES;
                self.mbar_error(
                    warp,
                    at,
                    lane,
                    "is read or overwritten as ordinary memory: put other data elsewhere, or invalidate \
                     the mbarrier",
                );
            }
        }
    }

    /// Marks whether the bytes at `at` belong to a live mbarrier.
    fn guard(&mut self, at: u32, live: bool) {
        let offset = (at - SHARED_BASE) as usize;
        let bytes = 0xff << (offset % CELL);
        let cell = &mut self.guarded[offset / CELL];
        *cell = if live { *cell | bytes } else { *cell & !bytes };
    }
}
