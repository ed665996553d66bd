//! Problems, and the kernels that solve them.
use crate::campaign::Outcome;
use crate::device::Runner;
use crate::ended;
use crate::error::Error;
use indicatif::ProgressBar;
use reference::{Judge, Rule, Subject, Task, Work, Written};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;

/// The result of a kernel.
#[derive(Deserialize, Serialize)]
pub(crate) struct Row {
    pub name: Cow<'static, str>,
    pub family: Cow<'static, str>,
    /// The mask of the kernel, or `None` for kernels without queries.
    pub mask: Option<Cow<'static, str>>,
    /// The form in which the kernel is loaded: `cubin` or `PTX`.
    #[serde(default)]
    pub form: Cow<'static, str>,
    /// Number of cases. A case may be several launches of one plan.
    pub cases: usize,
    /// The number of problems that a captured and replayed launch also solved.
    pub graphs: usize,
    /// Cases that had not run when the command was ended.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left: usize,
    /// The reason why the kernel cannot run here.
    pub skipped: Option<String>,
    /// Largest `error / tolerance`. In JSON, it is null if it is not finite.
    #[serde(deserialize_with = "or_infinite")]
    pub worst_ratio: f64,
    pub worst_case: Option<String>,
    /// Largest error of an element of O. In JSON, it is null if it is not finite.
    #[serde(deserialize_with = "or_infinite")]
    pub max_error: f64,
    pub failures: Vec<String>,
}

/// Returns whether there are no cases.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_none(cases: &usize) -> bool {
    *cases == 0
}

/// Returns a number, or infinity for null.
fn or_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Problems, each with the kernels that solve it, so that the expected result is computed once.
#[derive(Default)]
pub(crate) struct Trials {
    pub rows: Vec<Row>,
    /// Each problem, with the indices of its kernels in `rows`.
    tasks: Vec<(Task, Vec<usize>)>,
    /// Number of problems with several launches that each kernel also solves with a graph.
    graphs: usize,
}

impl Trials {
    /// Creates trials without results. A graph solves at most this number of problems per kernel.
    pub(crate) fn with_graphs(graphs: usize) -> Self {
        Trials { graphs, ..Trials::default() }
    }

    /// Adds a kernel with the problems that it solves.
    pub(crate) fn add(&mut self, row: Row, tasks: impl IntoIterator<Item = Task>) {
        let place = self.rows.len();
        self.rows.push(row);
        for task in tasks {
            match self.tasks.iter_mut().find(|(known, _)| *known == task) {
                Some((_, places)) => places.push(place),
                None => self.tasks.push((task, vec![place])),
            }
        }
    }

    /// Returns the number of problems.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Runs all problems. The run stops if a problem cannot be run, or if the program is asked to end. Then
    /// this function counts the remaining problems. Failures of a kernel are in the kernel's row.
    pub(crate) fn verify(&mut self, runner: &Runner, bar: &ProgressBar) -> Result<(), Error> {
        let mut result = Ok(());
        for (task, places) in &self.tasks {
            if result.is_err() || ended::asked() {
                for place in places {
                    let row = &mut self.rows[*place];
                    row.left += usize::from(row.skipped.is_none());
                }
                continue;
            }
            bar.set_message(task.to_string());
            result = solve(task, places, &mut self.rows, self.graphs, runner);
            bar.inc(1);
        }
        result
    }
}

/// Runs one problem with each of its kernels.
fn solve(
    task: &Task,
    places: &[usize],
    rows: &mut [Row],
    graphs: usize,
    runner: &Runner,
) -> Result<(), Error> {
    let work = task.work();
    let (mut judge, again) = (None, work.rounds() > 1);
    for place in places {
        let row = &mut rows[*place];
        if row.skipped.is_some() {
            continue;
        }
        let written = runner.run(&*work, Some(&row.name));
        row.judge(task.to_string(), written, &*work, &mut judge)?;
        row.cases += 1;
        if again && row.graphs < graphs {
            let written = runner.replay(&*work, Some(&row.name));
            row.judge(format!("{task}, by a graph"), written, &*work, &mut judge)?;
            row.graphs += 1;
        }
    }
    Ok(())
}

impl Row {
    pub(super) fn outcome(&self) -> Outcome<'_> {
        let (name, skipped) = (Cow::Borrowed(&*self.name), self.skipped.as_deref());
        let (is_begun, left) = (self.cases > 0 || self.left == 0, self.left);
        Outcome { name, skipped, is_begun, left, failures: self.failures.clone() }
    }

    /// Returns a row before the first case. If the device cannot hold the kernel, no case will run.
    pub(crate) fn new(name: &'static str, subject: &dyn Subject, runner: &Runner) -> Self {
        let skipped = reference::unfit(subject, runner.capabilities());
        let form = runner.form(subject.contract()).into();
        Row { skipped, form, ..Row::named(name, subject) }
    }

    /// Returns the row of a kernel whose process left no report. The row is a failure.
    pub(crate) fn lost(subject: &dyn Subject, why: &str) -> Self {
        Row { failures: vec![why.to_owned()], ..Row::named(subject.contract().symbol, subject) }
    }

    /// Notes that not all launches of `--soak` ran. The launches count as a case.
    pub(super) fn leave_soak(&mut self) {
        self.left += 1;
    }

    fn named(name: &'static str, subject: &dyn Subject) -> Self {
        Row {
            name: name.into(),
            family: subject.family().into(),
            mask: subject.mask().map(|mask| mask.name().into()),
            form: Cow::default(),
            cases: 0,
            graphs: 0,
            left: 0,
            skipped: None,
            worst_ratio: 0.0,
            worst_case: None,
            max_error: 0.0,
            failures: vec![],
        }
    }

    /// Judges every round of a problem. The first kernel that needs the exact result computes it.
    fn judge<'w>(
        &mut self,
        task: String,
        rounds: Result<Vec<Written>, ferroflash::Error>,
        work: &'w dyn Work,
        judge: &mut Option<Judge<'w>>,
    ) -> Result<(), Error> {
        let rounds = rounds.map_err(|error| Error::of_launch(error, &self.name, &task))?;
        let judge = match judge {
            Some(judge) => judge,
            none => none.insert(work.judge(Rule::Tolerance)?),
        };
        for (round, written) in rounds.iter().enumerate() {
            let judgement = judge(round, written);
            let place = || if round == 0 { task.clone() } else { format!("{task}, launch {}", round + 1) };
            // A NaN is counted as an infinite error.
            self.max_error = self.max_error.max(judgement.max_error);
            let ratio = judgement.worst_ratio;
            if ratio > self.worst_ratio || ratio.is_nan() {
                (self.worst_ratio, self.worst_case) = (ratio, Some(place()));
            }
            self.failures.extend(judgement.failures.iter().map(|failure| format!("{}: {failure}", place())));
        }
        Ok(())
    }
}
