//! The launches that a mutant must pass.
use super::trial::Case;
use super::{Subject, forward, on_cache};
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use reference::{OnDevice, Rule, Task, Work};
use spec::{Class, GRADIENTS};

/// All launches of `subject`: its edge cases, and sweeps.
pub(super) fn cases(subject: &Subject) -> Vec<Case> {
    if let Some(entry) = subject.forward() {
        return forward::cases(subject, entry);
    }
    let (mut edges, symbol) = (subject.of.edges(1), subject.of.contract().symbol);
    let entry = spec::attention().find(|entry| entry.contract.symbol == symbol);
    let mut sweeps = match entry.map(|entry| (entry, entry.class())) {
        Some((entry, Class::Decode)) if entry.is_plain() => on_cache::decode(entry),
        Some((entry, Class::Paged)) if entry.is_plain() => on_cache::paged(entry),
        _ => vec![],
    };
    for case in edges.iter_mut().chain(&mut sweeps) {
        if let Task::Attention(case) = case {
            // A combine kernel only runs without counters, because counters would tell a block that it is the
            // last one.
            case.counters &= !subject.merges();
        }
    }
    let gradients = GRADIENTS.iter().find(|entry| entry.contract.symbol == symbol);
    let gaps = gradients.map(|entry| {
        launch(symbol, "rows of Q, K and V with gaps", Box::new(forward::gradients_with_gaps(entry)), false)
    });
    let edges = edges.iter().map(|task| launch(symbol, task, task.work(), false));
    edges.chain(gaps).chain(sweeps.iter().map(|task| launch(symbol, task, task.work(), true))).collect()
}

/// A few of the edge cases, under one schedule.
pub(super) fn few(subject: &Subject) -> Vec<Case> {
    match subject.forward() {
        Some(entry) => forward::few(entry),
        None => {
            let edges = subject.of.edges(1);
            edges.iter().map(|task| launch(subject.kernel.symbol, task, task.work(), true)).collect()
        }
    }
}

/// A launch of `symbol` for this work.
fn launch(symbol: &'static str, name: impl ToString, work: Box<dyn Work>, sweep: bool) -> Case {
    // The judge borrows the problem. The code leaks both, so that they exist until the program ends.
    let work: &'static dyn Work = Box::leak(work);
    let judge = work.judge(Rule::Tolerance).expect("cases are valid");
    let launch = move |attention: &Attention<SimDriver>| {
        let rounds = OnDevice::new(attention, work, Some(symbol))?.run_all()?;
        let failures = rounds.iter().enumerate().map(|(round, written)| judge(round, written).failures);
        Ok(failures.flatten().collect())
    };
    Case { name: name.to_string(), sweep, launch: Box::new(launch) }
}
