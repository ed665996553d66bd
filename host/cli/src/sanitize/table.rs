//! The table's kernels in the simulator.
use super::{Console, Error, Finding, REFUSED, Row, Simulator, schedules};
use crate::{campaign, ended};
use ferroflash::driver::SimDriver;
use ferroflash::{Attention, Capabilities};
use reference::{OnDevice, Rule, Subject};

/// Runs every kernel on its edges.
pub(super) fn check(
    subjects: &[&'static dyn Subject],
    simulator: &Simulator<'_>,
    console: &Console,
) -> Result<(String, Vec<Row>), Error> {
    let device = SimDriver::new(simulator.profile)?;
    let capabilities = Attention::new(device).capabilities().clone();
    let name = |subject: &&dyn Subject| subject.contract().symbol.to_owned();
    let check = |subject: &&'static dyn Subject| row(*subject, simulator, &capabilities);
    let rows = campaign::each(console, "sanitize", subjects, name, check)?;
    Ok((capabilities.name.to_string(), rows))
}

fn row(subject: &dyn Subject, simulator: &Simulator<'_>, capabilities: &Capabilities) -> Result<Row, Error> {
    let symbol = subject.contract().symbol;
    let mut row = Row::new(symbol);
    let edges = || subject.edges(1).into_iter().filter(|task| subject.takes(task, capabilities));
    row.skipped = reference::unfit(subject, capabilities);
    if row.skipped.is_some() {
        return Ok(row);
    }
    if ended::asked() {
        row.leave(edges().count() * simulator.seeds as usize);
        return Ok(row);
    }
    let works: Vec<_> = edges().map(|task| (task.work(), task)).collect();
    let judged = works.iter().map(|(work, task)| Ok((work, task, work.judge(Rule::Tolerance)?)));
    let judged = judged.collect::<Result<Vec<_>, Error>>()?;
    for options in schedules(simulator.seeds) {
        let how = format!("schedule {}, copies {:?}", options.seed, options.completion).to_lowercase();
        let attention = Attention::new(SimDriver::with_options(simulator.profile, options)?);
        for (work, task, judge) in &judged {
            if ended::asked() {
                row.leave(1);
                continue;
            }
            let rounds =
                OnDevice::new(&attention, &***work, Some(symbol)).and_then(|mut device| device.run_all());
            row.launches += work.rounds();
            let place = format!("{task}, {how}");
            let reports = attention.driver().take_reports();
            match rounds {
                Ok(rounds) => {
                    let judgements = rounds.iter().enumerate().map(|(round, written)| judge(round, written));
                    let wrong = judgements.flat_map(|judgement| judgement.failures);
                    wrong.for_each(|words| row.add(Finding::new("wrong-result", &place, words)));
                }
                Err(error) if reports.is_empty() => row.add(Finding::new(REFUSED, &place, error)),
                Err(_) => reports.into_iter().for_each(|report| row.add(Finding::of(report, &place))),
            }
        }
    }
    Ok(row)
}
