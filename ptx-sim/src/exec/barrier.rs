//! Executes `bar` and `barrier`, which wait for all threads of the block, or for a number of them.

use std::fmt::{self, Display, Formatter};

use super::{
    Block,
    block::{BARRIERS, Stop},
    order::Handover,
    warp::{Status, Wait, Warp},
};
use crate::{
    op::{Bar, BarKind, Slot},
    regs::{LANES, R, lanes},
    report::Kind,
};

/// One of the sixteen barriers of a block.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The number of threads for which the barrier waits; `None` means the whole block.
    expected: Option<u32>,
    pub arrived: u32,
    arrivals: Vec<Arrival>,
    /// The knowledge that arrived warps hand over to the waiting warps.
    knowledge: Handover,
    /// The result of a reduction so far: count, and, or.
    reduction: (u32, bool, bool),
}

/// Lanes of one warp that arrived together.
#[derive(Debug)]
struct Arrival {
    warp: usize,
    lanes: u32,
    waits: bool,
    /// The destination of a reduction's result.
    result: Option<(BarKind, Slot, R)>,
}

impl Barrier {
    /// The lanes of `warp` that have arrived.
    fn lanes_of(&self, warp: usize) -> u32 {
        let arrivals = self.arrivals.iter().filter(|arrival| arrival.warp == warp);
        arrivals.fold(0, |lanes, arrival| lanes | arrival.lanes)
    }
}

impl Display for Barrier {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut warps: Vec<_> = self.arrivals.iter().map(|arrival| arrival.warp.to_string()).collect();
        warps.dedup();
        match self.expected {
            Some(threads) => write!(f, "{} of {threads} threads arrived", self.arrived)?,
            None => write!(f, "{} threads of the block arrived", self.arrived)?,
        }
        write!(f, " (warps {})", warps.join(", "))
    }
}

impl<'a> Block<'a> {
    pub(super) fn bar(&mut self, warp: &mut Warp<'a>, bar: &Bar, mask: u32) {
        if bar.aligned && mask != warp.live {
            let message = format!(
                "lanes {mask:#010x} of warp {} reach this barrier without lanes {:#010x}",
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
            return self.bad_barrier(
                warp,
                mask,
                "lanes disagree about the barrier's number or thread count".into(),
            );
        };
        if id as usize >= BARRIERS {
            return self.bad_barrier(warp, mask, format!("barrier {id}: must be 0 to 15"));
        }
        let block_threads = (self.context.warps * LANES) as u32;
        if let Some(n) = expected
            && (n == 0 || !n.is_multiple_of(32) || n > block_threads)
        {
            let message = format!(
                "barrier {id} with {n} threads: must be a multiple of 32 up to the block's {block_threads}"
            );
            return self.bad_barrier(warp, mask, message);
        }
        let gone =
            self.warps.iter().flatten().find(|other| other.status == Status::Done).map(|other| other.index);
        if let (Some(gone), None) = (gone, expected) {
            let message = format!("barrier {id} is for the whole block, but warp {gone} has exited");
            self.report(warp, Kind::MissingParticipants, mask, None, message);
        }
        let handover = self.handover(warp.index);
        let barrier = &mut self.barriers[id as usize];
        if barrier.arrived > 0 && barrier.expected != expected {
            let message = format!(
                "barrier {id} is awaited with {} threads here and with {} elsewhere",
                expected.unwrap_or(block_threads),
                barrier.expected.unwrap_or(block_threads)
            );
            return self.bad_barrier(warp, mask, message);
        }
        // A warp may arrive in one phase and then wait in the next phase.
        let arrived =
            |arrival: &Arrival| arrival.warp == warp.index && !arrival.waits && arrival.lanes == mask;
        let itself =
            bar.kind == BarKind::Sync && barrier.arrivals.iter().filter(|it| arrived(it)).count() == 1;
        let earlier = if itself { 0 } else { barrier.lanes_of(warp.index) };
        if earlier & mask != 0 {
            let message = format!("warp {} arrives twice at barrier {id} before it completes", warp.index);
            return self.bad_barrier(warp, mask, message);
        }
        barrier.expected = expected;
        barrier.arrived += mask.count_ones();
        let whole = earlier | mask == warp.live;
        if whole {
            // Lanes that have exited, or that never existed, arrive together with their warp.
            barrier.arrived += (!warp.live).count_ones();
        }
        let waits = bar.kind != BarKind::Arrive;
        barrier.knowledge.merge(&handover);
        let mut result = None;
        if let Some((slot, p, source)) = bar.reduce {
            let votes = warp.regs().pred(source, mask) & mask;
            let first = barrier.arrivals.is_empty();
            let (count, all, any) = if first { (0, true, false) } else { barrier.reduction };
            barrier.reduction = (count + votes.count_ones(), all && votes == mask, any || votes != 0);
            result = Some((bar.kind, slot, p));
        }
        barrier.arrivals.push(Arrival { warp: warp.index, lanes: mask, waits, result });
        self.clocks.tick(warp.index, warp.site);
        warp.epoch += u32::from(whole);
        if waits && let Some(path) = warp.frames.last_mut().and_then(|frame| frame.paths.last_mut()) {
            path.waits = Some(Wait::Barrier(id as usize));
            warp.status = Status::Barrier(id as usize);
        }
        self.release(id as usize, Some(warp));
        if warp.status != Status::Ready && warp.other_lanes(false) {
            warp.status = Status::Ready;
        }
    }

    /// Completes barriers after lanes of `warp` have exited, if all other lanes are already at a barrier.
    pub(super) fn lanes_left(&mut self, warp: &mut Warp<'a>) {
        for id in 0..BARRIERS {
            let lanes = self.barriers[id].lanes_of(warp.index);
            if lanes != 0 && lanes == warp.live {
                self.barriers[id].arrived += (!lanes).count_ones();
                self.release(id, Some(warp));
            }
        }
    }

    fn bad_barrier(&mut self, warp: &Warp<'a>, mask: u32, message: String) {
        self.report(warp, Kind::BarrierCount, mask, None, message);
        self.stop = Some(Stop::Reported);
    }

    /// Completes barrier `id` if all threads have arrived. `running` is the warp that is being executed.
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
        self.moved = true;
        for &Arrival { warp: index, lanes, waits, result } in &barrier.arrivals {
            if !waits {
                continue;
            }
            self.take_over(index, &barrier.knowledge);
            let warp = match &mut running {
                Some(running) if running.index == index => Some(&mut **running),
                _ => self.warps[index].as_mut(),
            };
            let Some(warp) = warp else { continue };
            warp.status = Status::Ready;
            warp.epoch += u32::from(lanes != warp.live);
            let paths = warp.frames.iter_mut().flat_map(|frame| &mut frame.paths);
            paths.filter(|path| path.waits == Some(Wait::Barrier(id))).for_each(|path| path.waits = None);
            let (count, all, any) = barrier.reduction;
            match result {
                None => {}
                Some((BarKind::RedPopc, Slot::W32(d), _)) => warp.regs().set32(d, lanes, &[count; LANES]),
                Some((BarKind::RedAnd, _, p)) => warp.regs().set_pred(p, lanes, if all { lanes } else { 0 }),
                Some((.., p)) => warp.regs().set_pred(p, lanes, if any { lanes } else { 0 }),
            }
        }
    }

    /// Reports a barrier for the whole block that can never complete, because a warp has exited. The block
    /// calls this function after the exit.
    pub(super) fn check_participants(&mut self, id: usize, exited: Option<usize>) {
        let Some(exited) = exited else { return };
        if self.barriers[id].arrived == 0 || self.barriers[id].expected.is_some() {
            return;
        }
        let waiting =
            self.barriers[id].arrivals.iter().map(|arrival| arrival.warp).find(|&warp| warp != exited);
        if let Some(waiting) = waiting
            && let Some(warp) = self.warps[waiting].take()
        {
            let message = format!(
                "warp {waiting} waits for the whole block at barrier {id}, but warp {exited} has exited"
            );
            self.report(&warp, Kind::MissingParticipants, warp.live, None, message);
            self.warps[waiting] = Some(warp);
        }
        self.release(id, None);
    }
}
