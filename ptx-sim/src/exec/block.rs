//! One thread block: its shared memory, its warps and who runs next.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

use super::{
    Context,
    barrier::Barrier,
    mbarrier::MBarrier,
    order::Order,
    warp::{Pending, Status, Warp},
};
use crate::{
    LaunchError,
    coverage::Met,
    decode::SHARED_BASE,
    memory::POISON,
    options::Completion,
    regs::LANES,
    report::{Kind, Report, SourceLine},
    shadow::{Clocks, Shadow},
};

/// Barriers of a block.
pub(super) const BARRIERS: usize = 16;
/// A warp that only polls this often, while nothing else moves, waits for ever.
const MAX_POLLS: u32 = 64;

/// Why a block ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// A report says why.
    Reported,
    Error(LaunchError),
}

/// What a block leaves behind.
pub(crate) struct Finished {
    pub reports: Vec<Report>,
    pub instructions: u64,
    pub output: String,
    pub error: Option<LaunchError>,
    /// Site by site, where [`crate::Options::coverage`] is on.
    pub coverage: Vec<Met>,
}

pub(crate) struct Block<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) id: [u32; 3],
    pub(super) linear: u64,
    /// Shared memory from [`SHARED_BASE`] on.
    pub(super) shared: Vec<u8>,
    pub(super) shadow: Shadow,
    pub(super) clocks: Clocks,
    pub(super) barriers: [Barrier; BARRIERS],
    pub(super) mbarriers: BTreeMap<u32, MBarrier>,
    pub(super) warps: Vec<Option<Warp<'a>>>,
    pub(super) reports: Vec<Report>,
    pub(super) seen: HashSet<(Kind, u32, u32)>,
    pub(super) output: String,
    pub(super) instructions: u64,
    pub(super) random: Random,
    pub(super) order: Order,
    pub(super) stop: Option<Stop>,
    /// Site by site; empty where nobody asked.
    pub(super) coverage: Vec<Met>,
    flushed: u64,
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

impl<'a> Block<'a> {
    pub fn new(context: &'a Context<'a>, id: [u32; 3]) -> Block<'a> {
        let bytes = (context.program.dynamic_base + context.dynamic_shared - SHARED_BASE) as usize;
        let bytes = bytes.next_multiple_of(crate::shadow::CELL);
        let linear = context.linear(id);
        Block {
            context,
            id,
            linear,
            shared: vec![POISON; bytes],
            shadow: Shadow::new(bytes, context.warps),
            clocks: Clocks::new(2 * context.warps),
            barriers: Default::default(),
            mbarriers: BTreeMap::new(),
            warps: (0..context.warps).map(|warp| Some(Warp::new(context, id, warp))).collect(),
            reports: Vec::new(),
            seen: HashSet::new(),
            output: String::new(),
            instructions: 0,
            random: Random(context.options.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ linear),
            order: Order::default(),
            stop: None,
            coverage: vec![Met::default(); if context.options.coverage { context.program.sites.len() } else { 0 }],
            flushed: 0,
        }
    }

    /// Runs the block to its end.
    pub fn run(mut self) -> Finished {
        while self.stop.is_none() {
            let Some((index, quantum)) = self.pick() else { break };
            let Some(mut warp) = self.warps[index].take() else { break };
            self.run_warp(&mut warp, quantum);
            if warp.status == Status::Done {
                self.warp_exited(&warp);
            }
            self.warps[index] = Some(warp);
            self.spend();
        }
        let error = match self.stop {
            Some(Stop::Error(error)) => Some(error),
            _ => None,
        };
        let Block { reports, instructions, output, coverage, .. } = self;
        Finished { reports, instructions, output, error, coverage }
    }

    /// Books the instructions executed since the last time.
    fn spend(&mut self) {
        let new = self.instructions - self.flushed;
        self.flushed = self.instructions;
        let total = self.context.spent.fetch_add(new, Relaxed) + new;
        if total > self.context.options.budget && self.stop.is_none() {
            let budget = self.context.options.budget;
            self.report_standing(
                Kind::Runaway,
                format!("the launch has executed more than its budget of {budget} warp instructions"),
            );
        }
    }

    fn status(&self, warp: usize) -> Status {
        self.warps[warp].as_ref().map_or(Status::Done, |warp| warp.status)
    }

    /// The next warp to run and for how many instructions.
    fn pick(&mut self) -> Option<(usize, u32)> {
        let seed = self.context.options.seed;
        let completion = self.context.options.completion;
        if completion == Completion::Eager || completion == Completion::Random && self.random.next() & 3 == 0 {
            while self.land_one() && completion == Completion::Eager {}
        }
        loop {
            let ready: Vec<usize> = (0..self.warps.len()).filter(|&warp| self.can_run(warp)).collect();
            if !ready.is_empty() {
                if seed == 0 {
                    return Some((ready[0], 1 << 14));
                }
                let warp = ready[self.random.below(ready.len())];
                return Some((warp, 1 + self.random.below(64) as u32));
            }
            if self.land_one() {
                continue;
            }
            let polling: Vec<usize> =
                (0..self.warps.len()).filter(|&warp| matches!(self.status(warp), Status::Polling(..))).collect();
            if let Some(&warp) =
                polling.iter().min_by_key(|&&warp| self.warps[warp].as_ref().map_or(0, |warp| warp.polls))
                && self.warps[warp].as_ref().is_some_and(|warp| warp.polls < MAX_POLLS)
            {
                if let Some(warp) = &mut self.warps[warp] {
                    warp.polls += 1;
                }
                return Some((warp, 1 << 14));
            }
            if (0..self.warps.len()).any(|warp| self.status(warp) != Status::Done) {
                self.report_standing(Kind::Deadlock, "no warp can make progress".into());
            }
            return None;
        }
    }

    fn can_run(&self, warp: usize) -> bool {
        match self.status(warp) {
            Status::Ready => true,
            Status::Polling(address, version) => self.mbarriers.get(&address).is_none_or(|bar| bar.version != version),
            _ => false,
        }
    }

    /// Lets one watched group of copies land.
    fn land_one(&mut self) -> bool {
        for index in 0..self.warps.len() {
            let waiting =
                |warp: &Warp<'_>| warp.pending.iter().any(|pending| matches!(pending, Pending::Arrive { .. }));
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

    /// Runs `warp` until it blocks, ends, or has used its share.
    fn run_warp(&mut self, warp: &mut Warp<'a>, quantum: u32) {
        warp.status = Status::Ready;
        let end = self.instructions + u64::from(quantum);
        while self.instructions < end {
            self.step(warp);
            if warp.status != Status::Ready || self.stop.is_some() {
                return;
            }
        }
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

    /// Where every warp stands, one line each, and the barriers that are not at rest.
    fn standing(&self) -> String {
        let mut text = String::new();
        for warp in self.warps.iter().flatten() {
            let place = super::trace::place(self.context, warp.site);
            let what = match warp.status {
                Status::Ready => "running".to_string(),
                Status::Barrier(id) => format!("waiting at barrier {id}"),
                Status::Polling(address, _) => format!("polling the mbarrier at shared + {:#x}", address - SHARED_BASE),
                Status::Done => "exited".to_string(),
            };
            let source = SourceLine::in_kernel(&place.source).map_or(String::new(), |line| format!(" at {line}"));
            text += &format!(
                "\n    warp {}: {what}, ptx line {} `{}`{source}",
                warp.index, place.ptx_line, place.instruction
            );
        }
        for (id, barrier) in self.barriers.iter().enumerate().filter(|(_, barrier)| barrier.arrived > 0) {
            text += &format!("\n    barrier {id}: {barrier}");
        }
        for (address, bar) in &self.mbarriers {
            text += &format!("\n    mbarrier at shared + {:#x}: {bar}", address - SHARED_BASE);
        }
        text
    }

    fn report_standing(&mut self, kind: Kind, message: String) {
        let message = message + &self.standing();
        let stuck = (0..self.warps.len()).find(|&warp| self.status(warp) != Status::Done).unwrap_or(0);
        if let Some(warp) = self.warps[stuck].take() {
            self.report(&warp, kind, warp.live, None, message);
            self.warps[stuck] = Some(warp);
        }
        self.stop = Some(Stop::Reported);
    }

    /// Offset in [`Self::shared`] of the shared address `at`, where `bytes` bytes fit.
    pub(super) fn shared_offset(&self, at: u64, bytes: usize) -> Option<usize> {
        let offset = at.checked_sub(u64::from(SHARED_BASE))? as usize;
        let size = (self.context.program.dynamic_base + self.context.dynamic_shared - SHARED_BASE) as usize;
        (at < 1 << 32 && offset + bytes <= size).then_some(offset)
    }
}

/// A warp is 32 lanes; masks below rely on it.
const _: () = assert!(LANES == 32);
