//! Measures the time of a fixed piece of work on this machine. Budgets of processor time are scaled by it. On
//! a shared or slow core, or beside a busy hardware thread, the same work takes up to three times as long.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use crate::budgets::processor_time;

/// Seconds of one core that the work takes on the reference machine, which has two idle cores. The budgets
/// were set there.
const REFERENCE: f64 = 0.21;

/// Numbers that the work sorts and looks up. They exceed the fastest caches, as a compiler's data does.
const NUMBERS: u32 = 200_000;

/// Samples of the machine's pace during a measurement.
#[derive(Default)]
pub struct Calibration {
    samples: Vec<Duration>,
}

impl Calibration {
    /// Takes a sample: runs the work on every core concurrently, as the measured task runs. Adds none if the
    /// system does not report the time.
    pub fn sample(&mut self) {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let Some(before) = processor_time() else { return };
        thread::scope(|scope| {
            for core in 0..cores {
                scope.spawn(move || work(core as u32));
            }
        });
        let took = processor_time().unwrap_or_default().saturating_sub(before);
        self.samples.push(took / cores as u32);
    }

    /// Time on this machine divided by time on the reference machine: the mean of all samples, 1 without
    /// samples.
    pub fn factor(&self) -> f64 {
        if self.samples.is_empty() {
            return 1.0;
        }
        let mean = self.samples.iter().sum::<Duration>().as_secs_f64() / self.samples.len() as f64;
        mean / REFERENCE
    }
}

/// The work: inserts unordered numbers into a tree, and looks them up.
fn work(seed: u32) {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let numbers: Vec<u32> = (0..NUMBERS).map(|_| next()).collect();
    let tree: BTreeMap<u32, u32> = numbers.iter().copied().zip(0..).collect();
    let found: u64 = numbers.iter().filter_map(|number| tree.get(number)).map(|n| u64::from(*n)).sum();
    black_box(found);
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
        assert!(taken.samples.iter().all(|took| *took > Duration::ZERO));
    }
}
