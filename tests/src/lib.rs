//! The functions that FerroFlash's tests share. [`check`] runs one case on one entry with any driver.
//!
//! The crate `reference`, which the program uses too, has the reference, the tolerance rule and the cases.
use ferroflash::driver::Harness;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::AttnInfo;
use ferroflash::{Attention, Capabilities};
use ptx_sim::Options;
use reference::{Case, Loaded, Memory, Outcome, Reference, Subject, carries_all, subjects};
pub use reference::{is_carried, lacks_kernel};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub mod batches;
pub mod clamps;
pub mod known_keys;
pub mod mutation;
pub mod on_cache;
pub mod orders;
pub mod subjects;

/// Whether the tests draw every problem: `cargo xtask test --all` and `ci` set this environment variable. On
/// the sample, this function asks for a kernel that the sample lacks, so ci knows that the test draws more on
/// all kernels.
pub fn is_thorough() -> bool {
    carries_all() && std::env::var_os("FERROFLASH_TEST_ALL").is_some()
}

/// The kernels in this build: all kernels, or the sample (`cargo xtask test`).
pub fn carried() -> impl Iterator<Item = &'static dyn Subject> {
    subjects().filter(|subject| is_carried(subject.contract().symbol))
}

/// The attention kernels that are meant, of those that this build has.
///
/// # Panics
/// Panics if there is none.
#[track_caller]
pub fn carried_kernels(is_meant: impl Fn(&AttnInfo) -> bool) -> Vec<&'static AttnInfo> {
    let all: Vec<_> = spec::attention().filter(|e| is_meant(e) && is_carried(e.contract.symbol)).collect();
    assert!(!all.is_empty(), "a build carries one");
    all
}

/// Calls `check` with each item, on every core.
///
/// # Panics
/// Panics if `check` panics.
pub fn on_every_core<T: Sync>(items: &[T], check: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(item);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(work);
        }
    });
}

/// A simulator of the smallest card that can run `entry`.
///
/// # Panics
/// Panics if no card can run the entry.
pub fn simulator_with(entry: &AttnInfo, options: Options) -> Attention<SimDriver> {
    let cards = ["l4", "a100", "h200"].map(|name| (name, Capabilities::profile(name).expect("a known card")));
    let card = cards.iter().find(|(_, card)| card.runs(&entry.contract).is_ok());
    let (name, _) = card.unwrap_or_else(|| panic!("no card holds {}", entry.contract.symbol));
    Attention::new(SimDriver::with_options(name, options).expect("a known card"))
}

/// Launches a problem on the kernel of this name.
///
/// # Panics
/// Panics if the driver refuses the launch, or if the simulator reports a finding.
#[track_caller]
pub fn run<D: Harness>(attention: &Attention<D>, kernel: &str, memory: &Memory) -> Outcome {
    let outcome = Loaded::new(attention, memory, Some(kernel)).and_then(|loaded| loaded.run());
    outcome.unwrap_or_else(|error| panic!("{kernel}: {}: {error}", memory.problem))
}

/// Runs `case` on `entry` and judges the result by the tolerance rule.
///
/// # Panics
/// Panics if the driver refuses the launch, if the simulator reports a finding, or if the result is
/// wrong.
#[track_caller]
pub fn check<D: Harness>(attention: &Attention<D>, entry: &AttnInfo, case: &Case) {
    let memory = case.memory();
    let reference = Reference::new(&memory.inputs().expect("cases are valid"));
    let outcome = run(attention, entry.contract.symbol, &memory);
    let verdict = outcome.judge(&reference, case.dtype).expect("the output has the problem's shape");
    let failures: Vec<_> = verdict.failures().collect();
    assert!(failures.is_empty(), "{}: {case}: {}", entry.contract.symbol, failures.join("; "));
}
