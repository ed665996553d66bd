//! `mbarrier`: barriers in shared memory with phases.

use std::fmt::{self, Display, Formatter};

use super::{
    Block,
    memory::Touched,
    warp::{Pending, Status, Warp},
};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    op::{Addr, Mbar, Phase},
    regs::{LANES, lanes},
    report::{Address, Kind},
    shadow::{self, CELL, merge},
};

/// Largest arrival count.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// An mbarrier object.
#[derive(Debug, Default)]
pub(super) struct MBarrier {
    /// The warp that initialised it, and when.
    init: (usize, u32),
    /// Completed phases.
    phase: u64,
    expected: u32,
    left: u32,
    /// Bytes that transactions still owe.
    transactions: i64,
    /// What the arrivals of this phase knew.
    clock: Vec<u32>,
    /// What the arrivals of the last phase of each parity knew.
    done: [Vec<u32>; 2],
    /// Changes when a waiter may have something new to see.
    pub version: u32,
}

impl Display for MBarrier {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "phase {}, {} of {} arrivals missing", self.phase, self.left, self.expected)?;
        if self.transactions != 0 {
            write!(f, ", {} bytes outstanding", self.transactions)?;
        }
        Ok(())
    }
}

impl MBarrier {
    fn arrive(&mut self, count: u32, clock: &[u32]) -> bool {
        merge(&mut self.clock, clock);
        let enough = count <= self.left;
        self.left = self.left.saturating_sub(count);
        self.settle();
        enough
    }

    fn settle(&mut self) {
        if self.left == 0 && self.transactions == 0 {
            self.done[(self.phase & 1) as usize] = std::mem::take(&mut self.clock);
            self.phase += 1;
            self.left = self.expected;
            self.version = self.version.wrapping_add(1);
        }
    }
}

impl<'a> Block<'a> {
    pub(super) fn mbar(&mut self, warp: &mut Warp<'a>, mbar: &Mbar, mask: u32) {
        match mbar {
            Mbar::Init { addr, count } => self.mbar_init(warp, addr, *count, mask),
            Mbar::Inval { addr } => {
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    if self.mbarriers.remove(&at).is_none() {
                        self.mbar_error(warp, at, lane, "is invalidated, but was never initialised");
                    }
                }
            }
            Mbar::Arrive { dst, addr, count, expect, drop } => {
                let counts = count.map_or([1; LANES], |row| *warp.regs().row32(row, mask));
                let bytes = expect.map_or([0; LANES], |row| *warp.regs().row32(row, mask));
                let mut states = [0; LANES];
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    let clock = self.clocks.row(warp.index).to_vec();
                    let Some(bar) = self.mbar_object(warp, at, lane) else { continue };
                    states[lane] = bar.phase;
                    bar.transactions += i64::from(bytes[lane]);
                    if *drop {
                        bar.expected = bar.expected.saturating_sub(1);
                    }
                    if !bar.arrive(counts[lane], &clock) {
                        self.mbar_error(warp, at, lane, "gets more arrivals than its phase expects");
                    }
                }
                self.clocks.tick(warp.index, warp.site);
                if let Some(d) = dst {
                    warp.regs().set64(*d, mask, &states);
                }
            }
            Mbar::Test { dst, addr, phase, blocking } => self.mbar_test(warp, (*dst, *phase, *blocking), addr, mask),
            Mbar::CpAsyncArrive { addr, noinc } => {
                let mut bar = [0; LANES];
                let mut lanes_with = 0;
                for (lane, at) in self.mbar_addresses(warp, addr, mask) {
                    let Some(object) = self.mbar_object(warp, at, lane) else { continue };
                    if !noinc {
                        object.left += 1;
                    }
                    bar[lane] = at;
                    lanes_with |= 1 << lane;
                }
                warp.pending.push_back(Pending::Arrive { mask: lanes_with, bar, site: warp.site });
            }
        }
    }

    /// Checked addresses of the lanes.
    fn mbar_addresses(&mut self, warp: &mut Warp<'a>, addr: &Addr, mask: u32) -> Vec<(usize, u32)> {
        let addresses = self.addresses(warp, addr, mask);
        let mut found = Vec::new();
        for lane in lanes(mask) {
            // A 32-bit register holds a shared address, a 64-bit one may hold a generic one.
            let space = if addresses[lane] >> 60 == 1 { Space::Generic } else { Space::Shared };
            let Some((space, at)) = self.place(warp, space, addresses[lane], 8, lane, "mbarrier") else { continue };
            if self.shared_offset(at, 8).is_none() {
                self.fault(warp, space, at, 8, lane, "mbarrier");
                continue;
            }
            found.push((lane, at as u32));
        }
        found
    }

    /// The object that a lane uses: one that is initialised, and known to be.
    fn mbar_object(&mut self, warp: &Warp<'a>, at: u32, lane: usize) -> Option<&mut MBarrier> {
        let Some(bar) = self.mbarriers.get(&at) else {
            self.mbar_error(warp, at, lane, "is used before mbarrier.init");
            return None;
        };
        let (by, when) = bar.init;
        if by != warp.index && self.clocks.known(warp.index, by) < when {
            self.mbar_error(warp, at, lane, "is used with no barrier after mbarrier.init");
        }
        self.mbarriers.get_mut(&at)
    }

    fn mbar_error(&mut self, warp: &Warp<'a>, at: u32, lane: usize, what: &str) {
        let address = Address { buffer: "shared".into(), offset: i64::from(at) - i64::from(SHARED_BASE) };
        self.report(warp, Kind::Mbarrier, 1 << lane, Some(address), format!("the mbarrier {what}"));
    }

    fn mbar_init(&mut self, warp: &mut Warp<'a>, addr: &Addr, count: u32, mask: u32) {
        let counts = *warp.regs().row32(count, mask);
        let mut touched = Touched::new();
        for (lane, at) in self.mbar_addresses(warp, addr, mask) {
            if self.mbarriers.remove(&at).is_some() {
                self.mbar_error(warp, at, lane, "is initialised again without mbarrier.inval");
            }
            if counts[lane] == 0 || counts[lane] > MAX_COUNT {
                self.mbar_error(warp, at, lane, "must expect between 1 and 2^20 - 1 arrivals");
            }
            touched.add((at - SHARED_BASE) as usize, 8, lane);
        }
        // The initialisation is an ordinary write: others need a barrier before they use the object.
        self.shared_access(warp, &touched, shadow::Access::Write);
        let init = (warp.index, self.clocks.now(warp.index));
        for (lane, at) in self.mbar_addresses(warp, addr, mask) {
            let expected = counts[lane].max(1);
            self.mbarriers.insert(at, MBarrier { init, expected, left: expected, ..MBarrier::default() });
        }
    }

    fn mbar_test(&mut self, warp: &mut Warp<'a>, (dst, phase, _blocking): (u32, Phase, bool), addr: &Addr, mask: u32) {
        let wanted = match phase {
            Phase::Parity(row) => warp.regs().row32(row, mask).map(u64::from),
            Phase::State(row) => *warp.regs().row64(row, mask),
        };
        let mut passed = 0;
        let mut waiting = None;
        for (lane, at) in self.mbar_addresses(warp, addr, mask) {
            let Some(bar) = self.mbar_object(warp, at, lane) else {
                passed |= 1 << lane;
                continue;
            };
            let parity = (wanted[lane] & 1) as usize;
            let complete = match phase {
                Phase::Parity(_) => (bar.phase & 1) as usize != parity,
                Phase::State(_) => bar.phase > wanted[lane],
            };
            if complete {
                let clock = bar.done[parity].clone();
                self.clocks.join(warp.index, &clock);
                passed |= 1 << lane;
            } else {
                waiting = Some((at, bar.version));
            }
        }
        warp.regs().set_pred(dst, mask, passed);
        match waiting {
            Some((at, version)) => warp.status = Status::Polling(at, version),
            None => {
                self.clocks.tick(warp.index, warp.site);
                warp.epoch += 1;
                warp.polls = 0;
            }
        }
    }

    /// The copies before a `cp.async.mbarrier.arrive` have landed: whoever waits sees what they wrote, and nothing else that the warp did.
    pub(super) fn asynchronous_arrive(&mut self, warp: &mut Warp<'a>, mask: u32, bars: &[u32; LANES], site: u32) {
        let agent = self.engine(warp);
        let clock = self.clocks.row(agent).to_vec();
        for lane in lanes(mask) {
            let enough = self.mbarriers.get_mut(&bars[lane]).is_none_or(|bar| bar.arrive(1, &clock));
            if !enough {
                let here = std::mem::replace(&mut warp.site, site);
                self.mbar_error(warp, bars[lane], lane, "gets more arrivals than its phase expects");
                warp.site = here;
            }
        }
        self.clocks.tick(agent, site);
    }

    /// Ordinary accesses must keep away from live mbarriers.
    pub(super) fn protect_mbarriers(&mut self, warp: &Warp<'a>, cell: usize, mask: u16, lanes: u32) {
        if self.mbarriers.is_empty() {
            return;
        }
        let start = (cell * CELL) as u32 + SHARED_BASE;
        for half in 0..2u32 {
            let at = start + 8 * half;
            if mask >> (8 * half) & 0xff != 0 && self.mbarriers.contains_key(&at) {
                self.mbar_error(
                    warp,
                    at,
                    lanes.trailing_zeros() as usize & 31,
                    "is overwritten or read as ordinary memory",
                );
            }
        }
    }
}
