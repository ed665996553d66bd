//! What a fixed piece of work costs on this machine at this time: a budget of processor time is divided by
//! it. A core that is shared, or slow, or whose other thread is busy, takes up to three times as long for the
//! same work.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use crate::budgets::processor_time;

/// What the work takes on the machine by which budgets were set, two idle cores, in seconds of one core.
const REFERENCE: f64 = 0.21;

/// Numbers that the work sorts and looks up: more than the fastest caches hold, as in a compiler.
const NUMBERS: u32 = 200_000;

/// Samples of the machine's pace, taken while something else is measured.
#[derive(Default)]
pub struct Calibration {
    samples: Vec<Duration>,
}

impl Calibration {
    /// Takes a sample: the work on every core at once, as whatever is measured has them. Where the system
    /// does not say what it took there is none.
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

    /// How many times as long as on the reference machine things take here: the mean of all samples, 1
    /// without any.
    pub fn factor(&self) -> f64 {
        if self.samples.is_empty() {
            return 1.0;
        }
        let mean = self.samples.iter().sum::<Duration>().as_secs_f64() / self.samples.len() as f64;
        mean / REFERENCE
    }
}

/// The work: numbers without order go into a tree and are found there again.
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
