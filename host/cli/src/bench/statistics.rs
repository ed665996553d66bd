//! Statistics of repeated measurements, and whether two measurements differ.
use serde::{Deserialize, Serialize};

/// Times of one launch, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Times {
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// Fastest.
    pub min_us: f64,
    /// The noise: the spread of the rounds' medians, relative to the median. If two reports differ by less
    /// than their noise, the difference means nothing.
    pub noise: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Times {
    /// Computes statistics of rounds of samples. Returns `None` without samples.
    pub(super) fn of(rounds: &[Vec<f64>]) -> Option<Self> {
        let mut all: Vec<f64> = rounds.iter().flatten().copied().collect();
        all.sort_by(f64::total_cmp);
        let p50_us = quantile(&all, 0.5)?;
        let medians = rounds.iter().filter_map(|round| {
            let mut round = round.clone();
            round.sort_by(f64::total_cmp);
            quantile(&round, 0.5)
        });
        let (low, high) = medians.fold((f64::MAX, f64::MIN), |(low, high), m| (low.min(m), high.max(m)));
        let noise = (high - low) / p50_us;
        Some(Times { p50_us, p90_us: quantile(&all, 0.9)?, min_us: all[0], noise, samples: all.len() })
    }
}

/// Returns the quantile `q` of sorted numbers, interpolated between neighbours.
pub(super) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Minimum noise. Clocks change by about this share between runs, even if the rounds of one run agree.
const LEAST_NOISE: f64 = 0.02;

/// Returns the slowdown from `before` to `now`, and its noise, both relative. The noise includes the noise of
/// both measurements, and is at least 2 %.
pub(super) fn slowdown(before: &Times, now: &Times) -> (f64, f64) {
    (now.p50_us / before.p50_us - 1.0, (before.noise + now.noise).max(LEAST_NOISE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.9), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 10.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.9), Some(9.0));
    }

    #[test]
    fn noise_is_what_rounds_differ_by() {
        let times = Times::of(&[vec![10.0, 11.0, 9.0], vec![12.0, 11.0, 10.5]]).expect("samples");
        assert_eq!((times.p50_us, times.min_us, times.samples), (10.75, 9.0, 6));
        assert!((times.noise - 1.0 / 10.75).abs() < 1e-12, "{}", times.noise);
        assert_eq!(Times::of(&[vec![4.0], vec![4.0]]).expect("samples").noise, 0.0);
        assert_eq!(Times::of(&[vec![], vec![]]), None);
    }

    #[test]
    fn a_regression_is_more_than_the_noise() {
        let times = |p50_us, noise| Times { p50_us, p90_us: p50_us, min_us: p50_us, noise, samples: 1 };
        let regressed = |before, now| {
            let (slower, allowed) = slowdown(&before, &now);
            slower > allowed
        };
        assert!(!regressed(times(100.0, 0.0), times(101.9, 0.0)));
        assert!(regressed(times(100.0, 0.0), times(102.1, 0.0)));
        assert!(!regressed(times(100.0, 0.02), times(104.9, 0.03)));
        assert!(regressed(times(100.0, 0.02), times(105.1, 0.03)));
        assert!(!regressed(times(100.0, 0.0), times(50.0, 0.0)));
    }
}
