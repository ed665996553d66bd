//! Problems of any family, in the simulator.
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Capabilities, Error};
use ptx_sim::Options;
use reference::{OnDevice, Rule, Subject, Task};

/// A simulator of the smallest card that runs a subject.
///
/// # Panics
/// Where no card does.
pub fn simulator(subject: &dyn Subject, options: Options) -> Attention<SimDriver> {
    let runs = |name: &&str| {
        let card = Capabilities::profile(name).expect("a known card");
        reference::unfit(subject, card).is_none()
    };
    let card = ["orin", "a100", "l4", "h200"].into_iter().find(runs);
    let card = card.unwrap_or_else(|| panic!("no card runs {}", subject.contract().symbol));
    Attention::new(SimDriver::with_options(card, options).expect("a known card"))
}

/// Runs every round of a problem on a subject, and judges what it has left.
///
/// # Errors
/// Those of the launches, the simulator's reports among them.
///
/// # Panics
/// Where another kernel runs, or a result is wrong.
pub fn run(attention: &Attention<SimDriver>, subject: &dyn Subject, task: &Task) -> Result<(), Error> {
    let (work, symbol) = (task.work(), subject.contract().symbol);
    let judge = work.judge(Rule::Tolerance).expect("problems are valid");
    for (round, written) in OnDevice::new(attention, &*work, Some(symbol))?.run_all()?.iter().enumerate() {
        assert_eq!(written.entry, symbol, "{task}");
        let failures = judge(round, written).failures;
        assert!(failures.is_empty(), "{symbol}: {task}, launch {round}: {}", failures.join("; "));
    }
    Ok(())
}

/// A subject on all of its edges.
///
/// # Panics
/// Where a launch is refused, a checker of the simulator finds something, or a result is wrong.
#[track_caller]
pub fn check_edges(subject: &dyn Subject) {
    let attention = simulator(subject, Options::default());
    for task in subject.edges(1) {
        run(&attention, subject, &task)
            .unwrap_or_else(|e| panic!("{}: {task}: {e}", subject.contract().symbol));
    }
}
