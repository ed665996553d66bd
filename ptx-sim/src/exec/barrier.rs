//! `bar` and `barrier`: all threads, or a number of them, of the block.

use std::fmt::{self, Display, Formatter};

use super::{
    Block,
    block::{BARRIERS, Stop},
    warp::{Status, Warp},
};
use crate::{
    op::{Bar, BarKind, Slot},
    regs::{LANES, lanes},
    report::Kind,
    shadow::merge,
};

/// One of the sixteen barriers.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Threads it waits for; `None`: the whole block.
    expected: Option<u32>,
    pub arrived: u32,
    /// Warps that arrived in this phase, and whether they wait.
    warps: Vec<(usize, bool)>,
    clock: Vec<u32>,
    /// Accumulated reduction: how many, whether all, whether any.
    reduction: (u32, bool, bool),
    /// Where each waiting warp wants the result.
    results: Vec<(usize, BarKind, Slot, u32)>,
}

impl Display for Barrier {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let warps: Vec<_> = self.warps.iter().map(|(warp, _)| warp.to_string()).collect();
        match self.expected {
            Some(threads) => write!(f, "{} of {threads} threads arrived", self.arrived)?,
            None => write!(f, "{} threads of the block arrived", self.arrived)?,
        }
        write!(f, " (warps {})", warps.join(", "))
    }
}

impl<'a> Block<'a> {
    pub(super) fn bar(&mut self, warp: &mut Warp<'a>, bar: &Bar, mask: u32) {
        if mask != warp.live {
            let message = format!(
                "lanes {mask:#010x} of warp {} reach this barrier, lanes {:#010x} do not come with them",
                warp.index,
                warp.live & !mask
            );
            self.report(warp, Kind::DivergentBarrier, mask, None, message);
            self.stop = Some(Stop::Reported);
            return;
        }
        let uniform = |row: &[u32; LANES]| {
            let first = row[mask.trailing_zeros() as usize % LANES];
            lanes(mask).all(|lane| row[lane] == first).then_some(first)
        };
        let id = uniform(warp.regs().row32(bar.id, mask));
        let threads = bar.threads.map(|threads| uniform(warp.regs().row32(threads, mask)));
        let (Some(id), Some(expected)) = (id, threads.map_or(Some(None), |threads| threads.map(Some))) else {
            return self.bad_barrier(warp, mask, "lanes disagree about the barrier's number or thread count".into());
        };
        if id as usize >= BARRIERS {
            return self.bad_barrier(warp, mask, format!("barrier {id}: there are barriers 0 to 15"));
        }
        let block_threads = (self.context.warps * LANES) as u32;
        if let Some(n) = expected
            && (n == 0 || !n.is_multiple_of(32) || n > block_threads)
        {
            let message =
                format!("barrier {id} with {n} threads: must be a multiple of 32 up to the block's {block_threads}");
            return self.bad_barrier(warp, mask, message);
        }
        let gone = self.warps.iter().flatten().find(|other| other.status == Status::Done).map(|other| other.index);
        if let (Some(gone), None) = (gone, expected) {
            let message = format!("barrier {id} is for the whole block, but warp {gone} has exited");
            self.report(warp, Kind::MissingParticipants, mask, None, message);
        }
        let barrier = &mut self.barriers[id as usize];
        if barrier.arrived > 0 && barrier.expected != expected {
            let message = format!(
                "barrier {id} is awaited with {} threads here and with {} elsewhere",
                expected.unwrap_or(block_threads),
                barrier.expected.unwrap_or(block_threads)
            );
            return self.bad_barrier(warp, mask, message);
        }
        if barrier.warps.iter().any(|&(other, _)| other == warp.index) {
            let message = format!("warp {} arrives twice at barrier {id} before it completes", warp.index);
            return self.bad_barrier(warp, mask, message);
        }
        barrier.expected = expected;
        barrier.arrived += LANES as u32;
        let waits = bar.kind != BarKind::Arrive;
        barrier.warps.push((warp.index, waits));
        merge(&mut barrier.clock, self.clocks.row(warp.index));
        if let Some((slot, p, source)) = bar.reduce {
            let votes = warp.regs().pred(source, mask) & mask;
            let first = barrier.warps.len() == 1;
            let (count, all, any) = if first { (0, true, false) } else { barrier.reduction };
            barrier.reduction = (count + votes.count_ones(), all && votes == mask, any || votes != 0);
            barrier.results.push((warp.index, bar.kind, slot, p));
        }
        self.clocks.tick(warp.index, warp.site);
        warp.epoch += 1;
        if waits {
            warp.status = Status::Barrier(id as usize);
        }
        self.release(id as usize, Some(warp));
    }

    fn bad_barrier(&mut self, warp: &Warp<'a>, mask: u32, message: String) {
        self.report(warp, Kind::BarrierCount, mask, None, message);
        self.stop = Some(Stop::Reported);
    }

    /// Completes barrier `id` if all have arrived. `running` is the warp that is being executed.
    fn release(&mut self, id: usize, running: Option<&mut Warp<'a>>) {
        let barrier = &self.barriers[id];
        let live = self.warps.iter().enumerate().filter(|(index, warp)| match warp {
            Some(warp) => warp.status != Status::Done,
            None => running.as_ref().is_some_and(|running| running.index == *index),
        });
        let needed = barrier.expected.unwrap_or(live.count() as u32 * LANES as u32);
        if barrier.arrived == 0 || barrier.arrived < needed {
            return;
        }
        let barrier = std::mem::take(&mut self.barriers[id]);
        let mut running = running;
        for &(index, waits) in barrier.warps.iter().filter(|(_, waits)| *waits) {
            debug_assert!(waits);
            self.clocks.join(index, &barrier.clock);
            let warp = match &mut running {
                Some(running) if running.index == index => Some(&mut **running),
                _ => self.warps[index].as_mut(),
            };
            let Some(warp) = warp else { continue };
            warp.status = Status::Ready;
            for (_, kind, slot, p) in barrier.results.iter().filter(|result| result.0 == index) {
                let (count, all, any) = barrier.reduction;
                let live = warp.live;
                match (kind, slot) {
                    (BarKind::RedPopc, Slot::W32(d)) => warp.regs().set32(*d, live, &[count; LANES]),
                    (BarKind::RedAnd, _) => warp.regs().set_pred(*p, live, if all { live } else { 0 }),
                    _ => warp.regs().set_pred(*p, live, if any { live } else { 0 }),
                }
            }
        }
    }

    /// After a warp has exited: a barrier for the whole block can never be complete again.
    pub(super) fn check_participants(&mut self, id: usize, exited: Option<usize>) {
        let Some(exited) = exited else { return };
        if self.barriers[id].arrived == 0 || self.barriers[id].expected.is_some() {
            return;
        }
        let waiting = self.barriers[id].warps.iter().find(|(warp, _)| *warp != exited).map(|(warp, _)| *warp);
        if let Some(waiting) = waiting
            && let Some(warp) = self.warps[waiting].take()
        {
            let message =
                format!("warp {waiting} waits for the whole block at barrier {id}, but warp {exited} has exited");
            self.report(&warp, Kind::MissingParticipants, warp.live, None, message);
            self.warps[waiting] = Some(warp);
        }
        self.release(id, None);
    }
}
