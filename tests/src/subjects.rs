//! Runs problems of any family in the simulator.
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Capabilities, Error};
use ptx_sim::{Completion, MmaArch, MmaMode, Options};
use reference::{Case, OnDevice, Rule, Subject, Task};
use spec::{Class, Contract, Entry, LayFp8, LayFp8Pages, Precision};

/// A simulator of the smallest card that can run a subject.
///
/// # Panics
/// Panics if no card can run it.
pub fn simulator(subject: &dyn Subject, options: Options) -> Attention<SimDriver> {
    let runs = |name: &&str| {
        let card = Capabilities::profile(name).expect("a known card");
        reference::unfit(subject, card).is_none()
    };
    let card = ["orin", "a100", "l4", "h200"].into_iter().find(runs);
    let card = card.unwrap_or_else(|| panic!("no card runs {}", subject.contract().symbol));
    let options = with_sums(subject, options);
    if is_persistent(subject.contract()) || is_gradient(subject.contract()) {
        // With two SMs, a persistent block has several tiles even in small problems. A block of a backward
        // kernel has several query heads, except in problems of few blocks.
        let card = SimDriver::of_multiprocessors(card, options, Some(2));
        return Attention::new(card.expect("a known card"));
    }
    Attention::new(SimDriver::with_options(card, options).expect("a known card"))
}

/// Options with the sums of a subject's products: Hopper cuts sums of e4m3 to 13 bits, for which the
/// tolerances must have room.
fn with_sums(subject: &dyn Subject, options: Options) -> Options {
    let mma = if has_cut_sums(subject.contract()) { MmaMode::Exact(MmaArch::Hopper) } else { options.mma };
    Options { mma, ..options }
}

/// Whether the kernel's launches compute products of e4m3 on Hopper.
fn has_cut_sums(kernel: &Contract) -> bool {
    let mut of_fp8 = spec::attention().filter(|entry| entry.precision() == Precision::Fp8);
    let [d128, d256] = [<LayFp8<8, 8> as Entry>::CONTRACT, <LayFp8<4, 16> as Entry>::CONTRACT];
    let pages = [<LayFp8Pages<8, 8> as Entry>::CONTRACT, <LayFp8Pages<4, 16> as Entry>::CONTRACT];
    let lays = [[d128, d256], pages].concat();
    of_fp8.any(|entry| entry.contract == *kernel) || lays.contains(kernel)
}

/// Whether the kernel computes gradients.
fn is_gradient(kernel: &Contract) -> bool {
    spec::GRADIENTS.iter().any(|entry| entry.contract == *kernel)
}

/// The problem with fewer heads, if it marks them as enough. Of a kernel whose blocks take several tiles,
/// [`simulator`] has two SMs. With all heads, a quarter of the table took 187 s of processors, and with these
/// 119 s.
fn with_enough_heads(task: Task) -> Task {
    match task {
        Task::Attention(case @ Case { enough_heads: Some(heads), .. }) => {
            Task::Attention(Case { heads: [heads; 2], ..case })
        }
        other => other,
    }
}

/// Whether a block of the kernel takes several tiles or work items, in the same shared memory.
pub(crate) fn is_persistent(kernel: &Contract) -> bool {
    spec::attention().chain(spec::GRADIENTS).find(|entry| entry.contract == *kernel).is_some_and(|entry| {
        let splits = matches!(entry.class(), Class::Dense | Class::Varlen) && entry.splits;
        entry.has_maps() && !splits
    })
}

/// Runs all launches of a task with the kernel `subject`, and judges the outputs of each launch.
///
/// # Errors
/// Returns the error of a launch, which includes the simulator's reports.
///
/// # Panics
/// Panics if another kernel runs, or if a result is wrong.
pub fn run(attention: &Attention<SimDriver>, subject: &dyn Subject, task: &Task) -> Result<(), Error> {
    let (work, symbol) = (task.work(), subject.contract().symbol);
    let judge = work.judge(Rule::Tolerance).expect("problems are valid");
    let mut device = OnDevice::new(attention, &*work, Some(symbol))?;
    assert!(device.runs(symbol)?, "{symbol} does not run: {task}");
    for (round, written) in device.run_all()?.iter().enumerate() {
        let failures = judge(round, written).failures;
        assert!(failures.is_empty(), "{symbol}: {task}, launch {round}: {}", failures.join("; "));
    }
    Ok(())
}

/// Runs a subject on the edge cases whose number `is_asked` accepts. From case to case, copies land late, at
/// once, or at random times.
///
/// # Panics
/// Panics if the driver refuses a launch, if the simulator reports a finding, or if a result is wrong.
#[track_caller]
pub fn check_edges(subject: &dyn Subject, is_asked: impl Fn(u64) -> bool) {
    let attention = simulator(subject, Options::default());
    let completions = [Completion::Late, Completion::Eager, Completion::Random];
    let schedules = (0..).zip(completions.into_iter().cycle());
    let takes = |task: &Task| subject.takes(task, attention.capabilities());
    let asked = schedules.zip(subject.edges(1)).filter(|((at, _), task)| is_asked(*at) && takes(task));
    for ((seed, completion), task) in asked {
        let task = with_enough_heads(task);
        let options = Options { seed, completion, ..Options::default() };
        attention.driver().set_options(with_sums(subject, options));
        run(&attention, subject, &task).unwrap_or_else(|error| {
            let reports: String = attention.driver().take_reports().iter().map(ToString::to_string).collect();
            let symbol = subject.contract().symbol;
            panic!("{symbol}: {task}, schedule {seed}, {completion:?} copies: {error}\n{reports}")
        });
    }
}
