//! Executes the blocks of a launch. The blocks run concurrently if no block waits for another block.
//! Otherwise, the blocks that the device can hold at once take turns.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Mutex,
};

use rayon::prelude::*;

use super::{Block, Context, begin::Begin, block::Finished, lock, schedule::Turn};
use crate::{Kind, LaunchError, Outcome, Report};

/// Runs all blocks of the launch.
pub(crate) fn run(context: &Context<'_>) -> Result<Outcome, LaunchError> {
    let [x, y, z] = context.grid.map(u64::from);
    let blocks = x * y * z;
    let block = |linear: u64| {
        Block::new(context, [(linear % x) as u32, (linear / x % y) as u32, (linear / x / y) as u32])
    };
    let all = Mutex::new(Collected::default());
    if context.program.blocks_communicate {
        in_turns(context, &all, blocks, block);
    } else {
        let whole = |linear| {
            let mut block = block(linear);
            while block.run() != Turn::Ended {}
            lock(&all).add(context, linear, block.finish())
        };
        // The loop ends at the first block that ends the launch.
        let _ = if context.options.parallel && blocks > 1 {
            (0..blocks).into_par_iter().try_for_each(whole)
        } else {
            (0..blocks).try_for_each(whole)
        };
    }
    all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).outcome(context)
}

/// Runs each block until it ends or waits, and then another block. New blocks begin first, while the device
/// can hold more blocks, in the order that the seed determines.
fn in_turns<'a>(
    context: &Context<'a>,
    all: &Mutex<Collected>,
    blocks: u64,
    block: impl Fn(u64) -> Block<'a>,
) {
    let shared = context.program.static_shared + context.dynamic_shared;
    let profile = context.profile;
    let room = profile.blocks_per_multiprocessor(context.threads, shared) * profile.multiprocessors;
    let room = room.max(1) as usize;
    let order = Begin::new(blocks, context.options.seed);
    let mut begun: VecDeque<(u64, Block<'a>)> = VecDeque::new();
    // `stuck` is the number of consecutive turns in which nothing changed.
    let (mut next, mut stuck) = (0, 0);
    loop {
        let turn = if next < blocks && begun.len() < room {
            let linear = order.block(next);
            next += 1;
            Some((linear, block(linear)))
        } else {
            begun.pop_front()
        };
        let Some((linear, mut block)) = turn else { return };
        let turn = block.run();
        stuck = if turn == Turn::Stuck { stuck + 1 } else { 0 };
        let newcomers = next < blocks && begun.len() + 1 < room;
        if turn == Turn::Stuck && stuck > begun.len() && !newcomers {
            block.deadlock();
        } else if turn != Turn::Ended {
            begun.push_back((linear, block));
            continue;
        }
        if lock(all).add(context, linear, block.finish()).is_err() {
            return;
        }
    }
}

type Numbered = (u64, usize, Report);

/// The results of the blocks that have ended. The results take constant memory, whatever the number of blocks
/// is.
#[derive(Default)]
struct Collected {
    outcome: Outcome,
    output: BTreeMap<u64, String>,
    /// For each kind and pair of PTX lines, the report of the block with the lowest index, and the index of
    /// the report in that block.
    reports: HashMap<(Kind, Option<u32>, u32), Numbered>,
    error: Option<(u64, LaunchError)>,
}

impl Collected {
    /// Adds the results of a block. Returns an error if no other block needs to run.
    fn add(&mut self, context: &Context<'_>, linear: u64, finished: Finished) -> Result<(), ()> {
        context.progress.ended();
        self.outcome.instructions += finished.instructions;
        let (module, program) = (context.module, context.program);
        self.outcome.coverage.add(module, program, &finished.coverage, finished.digest);
        if !finished.output.is_empty() {
            self.output.insert(linear, finished.output);
        }
        // If blocks run in parallel, the first reports would depend on the schedule.
        let mut ends = !context.options.parallel && finished.reports.len() >= context.options.max_reports;
        for (at, report) in finished.reports.into_iter().enumerate() {
            ends |= report.kind == Kind::Runaway;
            let first = report.first.as_ref().map(|side| side.place.ptx_line);
            let key = (report.kind, first, report.second.place.ptx_line);
            let known = self.reports.entry(key).or_insert_with(|| (linear, at, report.clone()));
            if linear < known.0 {
                *known = (linear, at, report);
            }
        }
        if let Some(error) = finished.error {
            ends = true;
            if self.error.as_ref().is_none_or(|(first, _)| linear < *first) {
                self.error = Some((linear, error));
            }
        }
        if ends { Err(()) } else { Ok(()) }
    }

    fn outcome(self, context: &Context<'_>) -> Result<Outcome, LaunchError> {
        if let Some((_, error)) = self.error {
            return Err(error);
        }
        let mut reports: Vec<_> = self.reports.into_values().collect();
        reports.sort_by_key(|(linear, at, _)| (*linear, *at));
        reports.truncate(context.options.max_reports);
        let mut reports: Vec<_> = reports.into_iter().map(|(.., report)| report).collect();
        reports.sort_by_key(|report| report.kind.rank());
        let output = self.output.into_values().collect();
        Ok(Outcome { reports, output, ..self.outcome })
    }
}
