//! Gives fair turns to the warps of a block, to diverged lanes, and to blocks that wait for other blocks.

use super::{
    Block,
    block::{BARRIERS, Finished, Stop},
    warp::{Pending, Status, Warp},
    warpgroup::MEMBERS,
};
use crate::{
    options::{Completion, Options},
    report::Kind,
};

/// Number of instructions that a warp executes in its turn, unless the schedule is random.
const SHARE: u32 = 1 << 12;
/// Number of instructions per turn of a warp with diverged lanes. The number is small, because such lanes may
/// wait for each other.
const SPLIT_SHARE: u32 = 1 << 8;
/// After this number of polls of an mbarrier without any change in its block, the warp waits for another
/// block, or forever.
const MAX_POLLS: u32 = 64;
/// The launch's patience divided by this number is the number of instructions without progress after which
/// lanes stray: see [`super::lanes`].
const STRAY: u64 = 1000;
/// After this number of instructions without an effect on waiting warps, other blocks run.
const IDLE: u64 = 1 << 12;
/// After this number of instructions, other blocks run in any case.
const TURN: u64 = 1 << 20;

/// The reason why a block's turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The block has ended.
    Ended,
    /// Other blocks should have their turn.
    Over,
    /// No warp of this block can make progress, and nothing has changed in this turn.
    Stuck,
}

impl<'a> Block<'a> {
    /// Runs the block until it has ended. If blocks wait for each other, it also stops when other blocks
    /// should run.
    pub fn run(&mut self) -> Turn {
        let (begin, mut moved, mut changed) = (self.instructions, self.instructions, false);
        let shuffled = if self.context.options.seed == 0 { IDLE } else { 1 + self.random.next() % IDLE };
        while self.stop.is_none() {
            let Some((index, quantum)) = self.pick() else {
                if (0..self.warps.len()).all(|warp| self.status(warp) == Status::Done) {
                    self.mbarriers_left();
                    return Turn::Ended;
                }
                if self.context.program.blocks_communicate && self.polling().next().is_some() {
                    self.warps.iter_mut().flatten().for_each(|warp| warp.polls = 0);
                    return if changed { Turn::Over } else { Turn::Stuck };
                }
                self.deadlock();
                return Turn::Ended;
            };
            let Some(mut warp) = self.warps[index].take() else { return Turn::Ended };
            self.last = index;
            self.run_warp(&mut warp, quantum);
            if warp.status == Status::Done {
                self.moved = true;
                self.warp_exited(&warp);
            }
            self.warps[index] = Some(warp);
            if self.moved {
                (moved, changed) = (self.instructions, true);
            }
            self.spend();
            let idle = self.instructions - moved > shuffled || self.instructions - begin > TURN;
            if idle && self.context.program.blocks_communicate && self.stop.is_none() {
                // A warp that polls device memory can always run. Copies land beside it nevertheless: another
                // block may wait for a warp that waits for them.
                self.land_one();
                return Turn::Over;
            }
        }
        Turn::Ended
    }

    /// Reports a deadlock, in which no warp can make progress.
    pub fn deadlock(&mut self) {
        let starved = self.warps.iter().flatten().any(|warp| matches!(warp.status, Status::Registers(_)));
        let (kind, message) = match starved {
            true => (Kind::RegisterBudget, "setmaxnreg.inc wants more registers than warps have given back"),
            false => (Kind::Deadlock, "no warp can make progress"),
        };
        self.report_standing(kind, message.into());
    }

    fn polling(&self) -> impl Iterator<Item = usize> {
        (0..self.warps.len()).filter(|&warp| matches!(self.status(warp), Status::Polling(..)))
    }

    /// The results of the block.
    pub fn finish(self) -> Finished {
        let digest = self.digest();
        super::lock(self.context.released).forget(self.number, &self.published_at);
        let error = match self.stop {
            Some(Stop::Error(error)) => Some(error),
            _ => None,
        };
        let Block { reports, instructions, output, coverage, .. } = self;
        Finished { reports, instructions, output, error, coverage, digest }
    }

    /// Counts the instructions since the last call, and checks the budget.
    fn spend(&mut self) {
        let new = self.instructions - self.flushed;
        self.flushed = self.instructions;
        let moved = std::mem::take(&mut self.moved);
        if let Some(message) = self.context.progress.spend(new, moved, self.context.options)
            && self.stop.is_none()
        {
            self.report_standing(Kind::Runaway, message);
        }
    }

    pub(super) fn status(&self, warp: usize) -> Status {
        self.warps[warp].as_ref().map_or(Status::Done, |warp| warp.status)
    }

    /// The next warp to run, and the number of instructions in its turn.
    fn pick(&mut self) -> Option<(usize, u32)> {
        let seed = self.context.options.seed;
        let completion = self.context.options.completion;
        if completion == Completion::Eager || completion == Completion::Random && self.random.next() & 3 == 0
        {
            while self.land_one() && completion == Completion::Eager {}
        }
        let warps = self.warps.len();
        loop {
            if seed == 0 {
                let turns = (1..=warps).map(|after| (self.last + after) % warps);
                if let Some(warp) = turns.into_iter().find(|&warp| self.can_run(warp)) {
                    return Some((warp, SHARE));
                }
            } else {
                let ready: Vec<usize> = (0..warps).filter(|&warp| self.can_run(warp)).collect();
                if !ready.is_empty() {
                    let warp = ready[self.random.below(ready.len())];
                    return Some((warp, 1 + self.random.below(64) as u32));
                }
            }
            if self.land_one() {
                continue;
            }
            let polls = |&warp: &usize| self.warps[warp].as_ref().map_or(0, |warp| warp.polls);
            let next = self.polling().min_by_key(polls).filter(|warp| polls(warp) < MAX_POLLS)?;
            if let Some(warp) = &mut self.warps[next] {
                warp.polls += 1;
            }
            return Some((next, SHARE));
        }
    }

    fn can_run(&self, warp: usize) -> bool {
        match self.status(warp) {
            Status::Ready => true,
            Status::Products(group) => self.warpgroups[warp / MEMBERS].products.committed >= group,
            Status::Registers(count) => self.free_registers >= count,
            Status::Cluster => self.cluster.is_complete(warp),
            Status::Polling(address, version) => {
                self.mbarriers.get(&address).is_none_or(|bar| bar.version != version)
            }
            _ => false,
        }
    }

    /// Completes one group of copies that an mbarrier watches.
    fn land_one(&mut self) -> bool {
        if self.land_load() {
            return true;
        }
        for index in 0..self.warps.len() {
            let waiting =
                |warp: &Warp<'_>| warp.pending.iter().any(|pending| matches!(pending, Pending::Arrive(_)));
            if self.warps[index].as_ref().is_some_and(waiting)
                && let Some(mut warp) = self.warps[index].take()
            {
                self.land_until_arrive(&mut warp);
                self.warps[index] = Some(warp);
                return true;
            }
        }
        false
    }

    /// Runs `warp` until it blocks, ends, or has used its turn.
    fn run_warp(&mut self, warp: &mut Warp<'a>, quantum: u32) {
        match std::mem::replace(&mut warp.status, Status::Ready) {
            Status::Products(group) => self.settle_products(warp, group),
            Status::Registers(count) => self.free_registers -= count,
            _ => {}
        }
        let split = warp.frames.last().is_some_and(|frame| frame.paths.len() > 1);
        let end = self.instructions + u64::from(if split { quantum.min(SPLIT_SHARE) } else { quantum });
        while self.instructions < end {
            self.step(warp);
            if warp.status != Status::Ready || self.stop.is_some() {
                return;
            }
        }
        let Options { patience, .. } = self.context.options;
        warp.other_lanes(split && self.context.progress.idle() > patience / STRAY);
    }

    fn warp_exited(&mut self, warp: &Warp<'a>) {
        let index = warp.index;
        for id in 0..BARRIERS {
            self.check_participants(id, Some(index));
            if let Some(Stop::Reported) = self.stop {
                return;
            }
        }
    }
}
