//! Counts cases and failures.
use candle::{DType, Result, Tensor};

/// Returns the largest difference of two tensors, in f32.
pub fn furthest(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_vec0()
}

/// Numbers of cases and failures.
#[derive(Default)]
pub struct Tally {
    cases: usize,
    failed: usize,
}

impl Tally {
    /// Counts a case, and prints its result.
    pub fn say(&mut self, what: &str, error: Result<f32>, allowed: f32) {
        self.cases += 1;
        let good = error.as_ref().is_ok_and(|error| *error <= allowed);
        self.failed += usize::from(!good);
        let said = error.map_or_else(|e| e.to_string(), |error| format!("{error:.2e} of {allowed:.0e}"));
        println!("{} {what}: {said}", if good { "ok    " } else { "FAILED" });
    }

    /// Prints the totals. Returns whether no case failed.
    pub fn end(&self) -> bool {
        println!("{} cases, {} failed", self.cases, self.failed);
        self.failed == 0
    }
}
