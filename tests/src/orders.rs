//! Removes the instructions that order the warps of a kernel, one at a time: barriers, waits, commits,
//! fences, and the initialisation of mbarriers. A test must notice that the order is missing.
use crate::on_cache::check_on;
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, ptx};
use ptx_sim::mutate::{Mutant, Operator, mutants};
use ptx_sim::{Completion, Options};
use reference::Case;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Instructions whose removal the launches cannot show: a part of the instruction, a source file, and the
/// reason.
pub type Unseen = [&'static str; 3];

/// Runs `case` on three SMs of an H200 without each of the instructions of kernel `symbol`, except for those
/// that are `unseen`. Returns the number of instructions.
///
/// # Panics
/// Panics if the whole kernel fails, or if a launch without an instruction passes.
#[track_caller]
pub fn check_each(symbol: &'static str, case: &Case, unseen: &[Unseen]) -> usize {
    check_each_of(symbol, symbol, case, unseen)
}

/// [`check_each`] for a kernel that the launches of attention kernel `of` run.
///
/// # Panics
/// Panics as [`check_each`] does.
#[track_caller]
pub fn check_each_of(symbol: &'static str, of: &'static str, case: &Case, unseen: &[Unseen]) -> usize {
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let run = |text: &str, completion| {
        let options = Options {
            budget: 60_000_000,
            patience: 2_000_000,
            max_reports: 1,
            completion,
            ..Options::default()
        };
        let card = SimDriver::of_multiprocessors("h200", options, Some(3)).expect("a known card");
        let attention = Attention::new(card);
        // SAFETY: only the simulator runs it, which checks every access.
        unsafe { attention.load_from(symbol, text) }.expect("a module");
        check_on(&attention, case, Some(of));
    };
    let completions = [Completion::Late, Completion::Eager];
    completions.into_iter().for_each(|completion| run(&text, completion));
    let is_noticed = |mutant: &Mutant| {
        let text = mutant.apply(&text);
        let runs = |completion| catch_unwind(AssertUnwindSafe(|| run(&text, completion))).is_ok();
        !completions.into_iter().all(runs)
    };
    use Operator::{DeleteBarrier, DeleteCommit, DeleteFence, DeleteInit, DeleteWait};
    let operators = [DeleteBarrier, DeleteWait, DeleteFence, DeleteCommit, DeleteInit];
    let all = mutants(&text, symbol).expect("PTX").into_iter();
    let all: Vec<_> = all.filter(|mutant| operators.contains(&mutant.operator)).collect();
    let is_unseen = |mutant: &&Mutant| {
        let from = |file: &str| mutant.source.iter().any(|line| line.file.ends_with(file));
        unseen.iter().any(|[what, file, _]| mutant.description.contains(what) && from(file))
    };
    let seen: Vec<_> = all.iter().filter(|mutant| !is_unseen(mutant)).collect();
    let unnoticed: Vec<_> = seen.iter().filter(|mutant| !is_noticed(mutant)).collect();
    assert!(unnoticed.is_empty(), "{} of {}: {unnoticed:#?}", unnoticed.len(), all.len());
    seen.len()
}
