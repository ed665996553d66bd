//! Measures the time of a fixed piece of work on this machine. The budgets of processor time are scaled by
//! the result. On a shared or slow core, or beside a busy hardware thread, the same work takes up to three
//! times as long.
//!
//! The work is a compilation, because compilers use most of ci's time. A sort of numbers in a tree was not
//! representative work. One machine needed 0.70 times the reference machine's time for this sort, but 1.0
//! times the reference machine's time for ci.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{self, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use crate::budgets::processor_time;

/// Processor time of the work in seconds, on the reference machine. Both of its cores do the work at the same
/// time. The budgets were measured on that machine.
const REFERENCE: f64 = 0.9;

/// Number of functions in the compiled source. The compiler instantiates the standard library's sort once per
/// function.
const FUNCTIONS: u32 = 8;

/// Samples of the machine's speed during a measurement.
#[derive(Default)]
pub struct Calibration {
    samples: Vec<Duration>,
}

impl Calibration {
    /// Takes a sample: compiles the source on every core at the same time, because the measured task uses all
    /// cores. Takes no sample if the system does not report the time, or if the compiler fails.
    pub fn sample(&mut self) {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let Some(before) = processor_time() else { return };
        let source = &source();
        let compiled = thread::scope(|scope| {
            let running: Vec<_> = (0..cores).map(|core| scope.spawn(move || compile(core, source))).collect();
            running.into_iter().all(|job| job.join().is_ok_and(|done| done))
        });
        let took = processor_time().unwrap_or_default().saturating_sub(before);
        if compiled {
            self.samples.push(took / cores as u32);
        }
    }

    /// The time on this machine, divided by the time on the reference machine. The result is the mean of all
    /// samples, or 1 if there are none.
    pub fn factor(&self) -> f64 {
        if self.samples.is_empty() {
            return 1.0;
        }
        let mean = self.samples.iter().sum::<Duration>().as_secs_f64() / self.samples.len() as f64;
        mean / REFERENCE
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

/// Compiles the source, and discards the code. Returns whether the compiler succeeded.
fn compile(core: usize, source: &str) -> bool {
    let object = env::temp_dir().join(format!("ferroflash-{}-{core}.o", process::id()));
    let mut rustc = Command::new("rustc");
    rustc.args(["-", "--crate-name", "work", "--crate-type", "lib", "-Copt-level=2", "-Ccodegen-units=1"]);
    rustc.args(["--emit", "obj", "-o"]).arg(&object).stdin(Stdio::piped());
    let Ok(mut running) = rustc.spawn() else { return false };
    let written = running.stdin.take().is_some_and(|mut stdin| stdin.write_all(source.as_bytes()).is_ok());
    let compiled = running.wait().is_ok_and(|status| status.success());
    fs::remove_file(object).is_ok() && compiled && written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_the_mean_of_what_was_sampled() {
        let of = |seconds: &[f64]| Calibration {
            samples: seconds.iter().map(|s| Duration::from_secs_f64(*s)).collect(),
        };
        assert_eq!(of(&[]).factor(), 1.0);
        assert!((of(&[REFERENCE, 3.0 * REFERENCE]).factor() - 2.0).abs() < 1e-6);
        let mut taken = Calibration::default();
        taken.sample();
        assert_eq!(taken.samples.len(), usize::from(processor_time().is_some()));
        assert!(taken.samples.iter().all(|took| *took > Duration::ZERO));
    }
}
