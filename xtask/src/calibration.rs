//! Measures the time of a fixed piece of work on this machine. The budgets of processor time are scaled by
//! the result. On a shared or slow core, or beside a busy hardware thread, the same work takes up to three
//! times as long.
//!
//! The work is a compilation, because compilers use most of ci's time. A sort of numbers in a tree was not
//! representative work. One machine needed 0.70 times the reference machine's time for this sort, but 1.0
//! times the reference machine's time for ci.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{env, fs, thread};

use crate::budgets;

/// Processor time of the work in seconds on the reference machine, while its other core is busy. The budgets
/// were measured on that machine.
const REFERENCE: f64 = 0.9;

/// Number of functions in the compiled source. The compiler instantiates the standard library's sort once per
/// function.
const FUNCTIONS: u32 = 8;

/// Time from the end of one sample to the start of the next one, and from the start of a task to its first
/// sample. A machine's speed changes within one step of ci, which takes up to 20 minutes.
const PAUSE: Duration = Duration::from_secs(30);

/// Samples of the machine's speed during a measurement: the processor time of the work.
#[derive(Default)]
pub struct Calibration {
    samples: Vec<Duration>,
}

impl Calibration {
    /// Runs `task`, and takes samples beside it until it ends. Takes no samples if the system does not report
    /// the time of a process, or if the compiler fails.
    pub fn during<T>(&mut self, task: impl FnOnce() -> T) -> T {
        self.every(PAUSE, task)
    }

    fn every<T>(&mut self, pause: Duration, task: impl FnOnce() -> T) -> T {
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let sampler = scope.spawn(move || {
                let mut samples = Vec::new();
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
                    samples.extend(compile());
                }
                samples
            });
            let done = task();
            drop(end);
            self.samples.extend(sampler.join().unwrap_or_default());
            done
        })
    }

    /// The processor time of this process and its children without the samples, if the system reports it.
    pub fn time_of_tasks(&self) -> Option<Duration> {
        Some(budgets::processor_time()?.saturating_sub(self.cost()))
    }

    /// The processor time of all samples.
    fn cost(&self) -> Duration {
        self.samples.iter().sum()
    }

    /// The time on this machine, divided by the time on the reference machine, or 1 without samples. A sample
    /// takes a second and a pause takes 30, so samples are almost evenly spaced in time. The mean of their
    /// speeds counts, not the mean of their times.
    pub fn factor(&self) -> f64 {
        if self.samples.is_empty() {
            return 1.0;
        }
        let speeds = self.samples.iter().map(|sample| REFERENCE / sample.as_secs_f64());
        self.samples.len() as f64 / speeds.sum::<f64>()
    }
}

/// The source that is compiled. Its functions format, parse and sort.
fn source() -> String {
    (0..FUNCTIONS).fold(String::new(), |mut text, i| {
        let _ = writeln!(
            text,
            "pub fn f{i}(words: &[&str]) -> Result<Vec<(String, u64)>, std::num::ParseIntError> {{
                let named = words.iter().map(|word| Ok((format!(\"{{word}} {i}\"), word.parse::<u64>()?)));
                let mut named = named.collect::<Result<Vec<_>, std::num::ParseIntError>>()?;
                named.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                Ok(named)
            }}"
        );
        text
    })
}

/// Compiles the source, and discards the code. Returns the processor time of the compiler.
fn compile() -> Option<Duration> {
    let object = env::temp_dir().join(format!("ferroflash-{}.o", process::id()));
    let mut rustc = Command::new("rustc");
    rustc.args(["-", "--crate-name", "work", "--crate-type", "lib", "-Copt-level=2", "-Ccodegen-units=1"]);
    rustc.args(["--emit", "obj", "-o"]).arg(&object).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = rustc.spawn().ok()?;
    let written = running.stdin.take().map(|mut stdin| stdin.write_all(source().as_bytes()));
    let output = running.stdout.take().map(|mut stdout| stdout.read_to_end(&mut Vec::new()));
    // The compiler has closed its output, so it has ended or is about to. The system keeps its time until
    // `wait`.
    let took = budgets::processor_time_of(running.id());
    let compiled = running.wait().is_ok_and(|status| status.success());
    let whole = written?.is_ok() && output?.is_ok() && compiled && fs::remove_file(object).is_ok();
    took.filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_the_mean_of_the_sampled_speeds() {
        let of = |seconds: &[f64]| Calibration {
            samples: seconds.iter().map(|s| Duration::from_secs_f64(*s)).collect(),
        };
        assert_eq!(of(&[]).factor(), 1.0);
        // Half of the time at full speed and half at a third: two thirds of the work.
        assert!((of(&[REFERENCE, 3.0 * REFERENCE]).factor() - 1.5).abs() < 1e-6);
    }

    #[test]
    fn a_task_has_samples_beside_it() {
        let mut taken = Calibration::default();
        assert_eq!(taken.during(|| 7), 7);
        taken.every(Duration::from_secs(600), || thread::sleep(Duration::from_millis(100)));
        assert!(taken.samples.is_empty(), "the tasks are short");
        taken.every(Duration::from_millis(1), || thread::sleep(Duration::from_secs(2)));
        assert_eq!(taken.samples.is_empty(), budgets::processor_time().is_none());
        assert!((0.1..20.0).contains(&taken.factor()), "{}", taken.factor());
    }
}
