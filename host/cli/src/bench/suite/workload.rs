//! The workload of a shape, for every kind of request.
use crate::error::Error;
use reference::Work;

/// Something to measure: its words, its work by the count of it, and its inputs.
pub(crate) struct Workload {
    /// In words: unlike all others of the suite.
    pub label: String,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes that must cross the memory bus at least.
    pub least_bytes: f64,
    /// Whether a launch in a model finds nothing of it in the caches: between two looks at a cache lies
    /// everything else.
    pub cold: bool,
    work: Box<dyn Fn() -> Box<dyn Work>>,
}

impl Workload {
    /// A workload: each call of `work` makes its inputs.
    pub(super) fn new<W: Work + 'static>(
        label: String,
        [flops, least_bytes]: [f64; 2],
        cold: bool,
        work: impl Fn() -> W + 'static,
    ) -> Self {
        Workload { label, flops, least_bytes, cold, work: Box::new(move || Box::new(work())) }
    }

    /// Its inputs, made anew.
    pub(crate) fn work(&self) -> Box<dyn Work> {
        (self.work)()
    }
}

/// Most bytes of a shape.
const MOST: f64 = 64.0 * (1u64 << 30) as f64;

/// Checks that the size of inputs and outputs is plausible.
pub(super) fn fits(bytes: f64) -> Result<(), Error> {
    if bytes <= MOST {
        return Ok(());
    }
    let most = MOST / f64::from(1u32 << 30);
    Err(Error::Invalid(format!("{bytes:.3e} bytes of tensors: at most {most} GiB are measured")))
}
