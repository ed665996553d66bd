//! The difference between two outcomes of one problem.
use ferroflash::DType;
use reference::{Rows, Work, Written, unit_roundoff};
use serde::Serialize;

/// The difference between two results.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Difference {
    /// Number of elements of O, or of bytes of a KV cache.
    pub words: usize,
    pub differing: usize,
    /// Largest difference in units in the last place of the row's largest element.
    pub o_ulps: f64,
    /// The number of rows, and the number of rows in which some probability was rounded differently. The
    /// log-sum-exp of such a row differs by more than the error of its own arithmetic.
    pub rows: usize,
    pub rounded_otherwise: usize,
    /// The number of rows of O in which a probability of e4m3 was rounded differently.
    pub e4m3_otherwise: usize,
    /// Largest difference of a log-sum-exp divided by the allowed difference.
    pub lse_ratio: f64,
}

/// Allowed difference of O, in units in the last place of the row's largest element.
const O_ULPS: f64 = 2.0;
/// Allowed difference of a gradient that is a sum of large numbers, as a part of its tolerance. If one dS is
/// rounded differently, such a sum changes by many units of its last place. (One key for all queries has
/// dS = 0, and the difference is one of two roundings.) Two simulators with different sums of products differ
/// by at most 0.31 of the tolerance.
const OF_A_TOLERANCE: f64 = 0.5;
/// Allowed difference of a log-sum-exp, in roundings of a probability. If a probability is rounded
/// differently, its two values differ by two roundings. The larger the probability's share of the row's sum,
/// the more the sum changes. In a row with two keys, the larger probability is exactly 1, and the sums differ
/// by at most two thirds of a rounding. In a row with three keys, two probabilities may differ, and the sums
/// then differ by at most one rounding. (H200: 0.61 in a row with two keys, 0.1 in rows with many keys. H100:
/// 0.9 in one row of the kernels for an f32 bias, of 626 kernels.) If a kernel computes wrong sums, more rows
/// differ.
const OF_A_ROUNDING: f64 = 1.0;
/// Allowed difference of O, as a part of its row's largest element, in a row that has a probability of e4m3
/// which is rounded differently: the distance of neighbouring probabilities. (H200: 1/64 in 2 of 251
/// problems. A simulator whose exponentials differ by one unit of f32 differs in the same problems, as
/// much.)
const OF_E4M3: f64 = 0.125;
/// At most one row in this number of rows may have a probability that is rounded differently. Such a row
/// occurs if the exact value lies near the middle between two values of the type. On an H200, at most 0.7 %
/// of a kernel's rows are such rows.
const ROWS_PER_OTHERWISE: usize = 50;

/// Returns the distance between neighbouring numbers of `dtype` around `x`. For f32, returns 8 times this
/// distance. In f32 results, the errors of the approximations are visible, and each approximation is wrong by
/// up to 2 distances.
fn unit(dtype: DType, x: f64) -> f64 {
    let lowest = dtype.min_exponent();
    let exponent = if x > 0.0 { (x.log2().floor() as i32).max(lowest) } else { lowest };
    let bits = if dtype == DType::F32 { dtype.mantissa_bits() - 3 } else { dtype.mantissa_bits() };
    2f64.powi(exponent - bits)
}

/// Returns `|a - b|`. The distance is 0 for equal infinities, and infinite for NaN.
fn distance(a: f32, b: f32) -> f64 {
    let distance = if a == b { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
    if distance.is_nan() { f64::INFINITY } else { distance }
}

impl Difference {
    /// Returns the difference between two outcomes of a problem.
    pub fn of(work: &dyn Work, left: &Written, right: &Written) -> Self {
        match (work.rows(left), work.rows(right)) {
            (Some(left), Some(right)) => Self::between(&left, &right),
            _ => {
                let bytes = |written: &Written| written.outputs.concat();
                let (left, right) = (bytes(left), bytes(right));
                let differing = left.iter().zip(&right).filter(|(a, b)| a != b).count();
                // The bytes of a KV cache have no unit in the last place, so they must be equal.
                let o_ulps = if differing > 0 { f64::INFINITY } else { 0.0 };
                Difference { words: left.len(), differing, o_ulps, ..Difference::default() }
            }
        }
    }

    fn between(left: &Rows, right: &Rows) -> Self {
        let (mut sum, dtype, columns) = (Difference::default(), left.dtype, left.columns);
        let tolerances = left.tolerances.iter().copied().chain(std::iter::repeat(0.0));
        for ((a, b), tolerance) in left.o.chunks(columns).zip(right.o.chunks(columns)).zip(tolerances) {
            let pairs = || a.iter().zip(b);
            let largest = pairs().map(|(a, b)| f64::from(a.abs().max(b.abs()))).fold(0.0, f64::max);
            let off = pairs().map(|(a, b)| distance(*a, *b)).fold(0.0, f64::max);
            sum.words += columns;
            sum.differing += pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            // An infinite element has no unit in the last place.
            let unit = unit(dtype, largest).max(tolerance * OF_A_TOLERANCE / O_ULPS);
            let ulps = if off.is_finite() { off / unit } else { off };
            if left.is_of_e4m3 && ulps > O_ULPS && off <= largest * OF_E4M3 {
                sum.e4m3_otherwise += 1;
            } else {
                sum.o_ulps = sum.o_ulps.max(ulps);
            }
        }
        let rounding = OF_A_ROUNDING * unit_roundoff(dtype);
        for (a, b) in left.lse.iter().zip(&right.lse) {
            let off = distance(*a, *b);
            let own = if a.is_finite() { 2e-6 * f64::from(a.abs()) + 1e-6 } else { 1e-6 };
            sum.rows += 1;
            sum.rounded_otherwise += usize::from(off > own);
            sum.lse_ratio = sum.lse_ratio.max(off / (own + rounding));
        }
        sum
    }

    /// Combines two differences.
    pub fn and(self, other: Self) -> Self {
        Difference {
            words: self.words + other.words,
            differing: self.differing + other.differing,
            o_ulps: self.o_ulps.max(other.o_ulps),
            rows: self.rows + other.rows,
            rounded_otherwise: self.rounded_otherwise + other.rounded_otherwise,
            e4m3_otherwise: self.e4m3_otherwise + other.e4m3_otherwise,
            lse_ratio: self.lse_ratio.max(other.lse_ratio),
        }
    }

    /// Returns the percentage of words with equal bits.
    pub fn same(&self) -> f64 {
        100.0 * (self.words - self.differing) as f64 / self.words.max(1) as f64
    }

    /// Returns the message for the first result that exceeds its tolerance, if any.
    pub fn failure(&self) -> Option<String> {
        if self.o_ulps > O_ULPS {
            return Some(format!(
                "O differs by {:.2} ulp of its row's largest element, allowed {O_ULPS}",
                self.o_ulps
            ));
        }
        let ratio = self.lse_ratio;
        (ratio > 1.0).then(|| format!("the log-sum-exp differs by {ratio:.2} times the tolerance"))
    }

    /// Returns the message if more of a kernel's rows are rounded differently than allowed. One row is always
    /// allowed.
    pub fn too_many_rows(&self) -> Option<String> {
        let Difference { rows, rounded_otherwise, e4m3_otherwise, .. } = *self;
        let allowed = (rows / ROWS_PER_OTHERWISE).max(1);
        let of = [("the log-sum-exp", rounded_otherwise), ("O", e4m3_otherwise)];
        let (what, count) = of.into_iter().find(|(_, count)| *count > allowed)?;
        Some(format!("{what} of {count} of {rows} rows is off by a rounding, allowed {allowed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Attention;
    use ferroflash::driver::SimDriver;
    use ferroflash::kernels::{ATTENTION, AttnInfo, MaskKind};
    use ferroflash::spec::{GRADIENTS, Pass};
    use ptx_sim::{MmaArch, MmaMode, Options};
    use reference::{OnDevice, Subject, Task, is_carried};

    fn difference(a: [f32; 2], b: [f32; 2], lse: [f32; 2]) -> Option<String> {
        let rows = |row: [f32; 2], lse| {
            let (o, lse, tolerances) = (row.into(), vec![lse], vec![]);
            Rows { dtype: DType::F16, columns: 2, o, lse, tolerances, is_of_e4m3: false }
        };
        Difference::between(&rows(a, lse[0]), &rows(b, lse[1])).failure()
    }

    #[test]
    fn bounds() {
        let ulp = 2f32.powi(-10);
        assert_eq!(difference([1.0, 0.25], [1.0 + 2.0 * ulp, 0.25], [3.0, 3.0]), None);
        assert!(difference([1.0, 0.25], [1.0 + 3.0 * ulp, 0.25], [3.0, 3.0]).is_some());
        assert!(difference([1.0, f32::NAN], [1.0, 0.0], [3.0, 3.0]).is_some());
        assert!(difference([1.0, f32::INFINITY], [1.0, 0.0], [3.0, 3.0]).is_some());
        let none = f32::NEG_INFINITY;
        assert_eq!(difference([0.0, 0.0], [0.0, 0.0], [none, none]), None);
        assert!(difference([0.0, 0.0], [0.0, 0.0], [none, -80.0]).is_some());
        assert_eq!(difference([1.0, 1.0], [1.0, 1.0], [3.0, 3.00049]), None);
        assert!(difference([1.0, 1.0], [1.0, 1.0], [3.0, 3.0005]).is_some());
        assert!(difference([1.0, 1.0], [1.0, 1.0], [3.0, f32::NAN]).is_some());
    }

    #[test]
    fn few_rows_are_rounded_otherwise() {
        let of = |rounded_otherwise, rows| Difference { rows, rounded_otherwise, ..Difference::default() };
        let of_e4m3 = |e4m3_otherwise, rows| Difference { rows, e4m3_otherwise, ..Difference::default() };
        for (allowed, rows) in [(0, 0), (1, 1), (1, 99), (2, 100), (20, 1000)] {
            for of in [of, of_e4m3] {
                assert_eq!(of(allowed, rows).too_many_rows(), None, "{rows}");
                assert!(of(allowed.max(1) + 1, rows).too_many_rows().is_some(), "{rows}");
            }
        }
    }

    #[test]
    fn a_probability_of_e4m3_may_be_rounded_otherwise() {
        let of = |o: [f32; 2], is_of_e4m3| Rows {
            dtype: DType::F16,
            columns: 2,
            o: o.into(),
            lse: vec![],
            tolerances: vec![],
            is_of_e4m3,
        };
        let between =
            |x, is_of_e4m3| Difference::between(&of([1.0, 0.5], is_of_e4m3), &of([1.0, x], is_of_e4m3));
        let near = between(0.5 + 1.0 / 16.0, true);
        assert!(near.failure().is_none() && near.e4m3_otherwise == 1, "{near:?}");
        for other in [between(0.5 + 1.0 / 16.0, false), between(0.75, true), between(f32::NAN, true)] {
            assert!(other.failure().is_some() && other.e4m3_otherwise == 0, "{other:?}");
        }
    }

    #[test]
    fn other_roundings_stay_within_the_bounds_and_other_inputs_do_not() {
        let is_causal = |e: &&AttnInfo| e.mask == MaskKind::Causal && is_carried(e.contract.symbol);
        let entry = ATTENTION.iter().find(is_causal).expect("a build carries a causal entry");
        let sim = |mma| {
            Attention::new(SimDriver::with_options("l4", Options { mma, ..Options::default() }).expect("l4"))
        };
        let run = |mma, task: &Task| {
            let (attention, work) = (sim(mma), task.work());
            let written = OnDevice::new(&attention, &*work, Some(entry.contract.symbol));
            written.and_then(|device| device.run()).expect("runs")
        };
        let task = entry.edges(1).swap_remove(3);
        let exact = run(MmaMode::Exact(MmaArch::Hopper), &task);
        let of = |written: &Written| Difference::of(&*task.work(), &exact, written);
        let fast = of(&run(MmaMode::Fast, &task));
        assert!(fast.differing > 0 && fast.failure().is_none(), "{fast:?}");
        let other = of(&run(MmaMode::Fast, &entry.edges(2)[3]));
        assert!(other.failure().is_some(), "{other:?}");
    }

    /// Scores of -20 are sums of large numbers, and so are their gradients, which cancel.
    #[test]
    fn gradients_that_cancel_stay_within_their_tolerance() {
        let is_full = |e: &&AttnInfo| e.pass == Pass::DkDv && e.mask == MaskKind::Full && e.head_dim == 64;
        let mut carried = GRADIENTS.iter().filter(is_full).filter(|e| is_carried(e.contract.symbol));
        let Some(entry) = carried.next() else {
            // The sample of the kernels has none of gradients.
            return assert!(!reference::carries_all());
        };
        let run = |mma, task: &Task| {
            let sim = SimDriver::with_options("a100", Options { mma, ..Options::default() });
            let (attention, work) = (Attention::new(sim.expect("a100")), task.work());
            let written = OnDevice::new(&attention, &*work, Some(entry.contract.symbol));
            written.and_then(|device| device.run()).expect("runs")
        };
        let is_low = |task: &&Task| task.to_string().contains("with every score");
        let task = entry.edges(1).into_iter().find(|task| is_low(&task)).expect("an edge");
        let exact = run(MmaMode::Exact(MmaArch::Hopper), &task);
        let of = |written: &Written| Difference::of(&*task.work(), &exact, written);
        let fast = of(&run(MmaMode::Fast, &task));
        assert!(fast.differing > 0 && fast.failure().is_none(), "{fast:?}");
        let other = entry.edges(2).into_iter().find(|task| is_low(&task)).expect("an edge");
        assert!(of(&run(MmaMode::Fast, &other)).failure().is_some());
    }

    #[test]
    fn bytes_of_a_cache_are_the_same() {
        let append = reference::subjects().find(|subject| subject.family() == "append").expect("there");
        let work = append.edges(1).swap_remove(0).work();
        let outputs: Vec<_> = work.outputs().into_iter().map(|(_, bytes)| bytes).collect();
        let written = Written {
            entry: "none",
            kernels: vec![],
            workspace: 0,
            reason: "none",
            outputs,
            counters: vec![],
        };
        let mut other = written.clone();
        assert_eq!(Difference::of(&*work, &written, &other).failure(), None);
        other.outputs[0][300] ^= 1;
        let difference = Difference::of(&*work, &written, &other);
        assert!(difference.differing == 1 && difference.failure().is_some(), "{difference:?}");
    }
}
