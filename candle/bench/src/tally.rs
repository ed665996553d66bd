//! Cases, and how they went.
use candle::{DType, Result, Tensor};

/// The largest difference, both as f32.
pub fn furthest(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_vec0()
}

/// Failures, and the number of checked values.
#[derive(Default)]
pub struct Tally {
    cases: usize,
    failed: usize,
}

impl Tally {
    /// Counts a case, and says how it went.
    pub fn say(&mut self, what: &str, error: Result<f32>, allowed: f32) {
        self.cases += 1;
        let good = error.as_ref().is_ok_and(|error| *error <= allowed);
        self.failed += usize::from(!good);
        let said = error.map_or_else(|e| e.to_string(), |error| format!("{error:.2e} of {allowed:.0e}"));
        println!("{} {what}: {said}", if good { "ok    " } else { "FAILED" });
    }

    /// Whether nothing failed.
    pub fn end(&self) -> bool {
        println!("{} cases, {} failed", self.cases, self.failed);
        self.failed == 0
    }
}
