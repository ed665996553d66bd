//! The workload of a shape, for every kind of request.
use crate::error::Error;
use reference::Work;

/// A workload to measure: its label, its counted work, and its inputs.
pub(crate) struct Workload {
    /// A label that is unique in the suite.
    pub label: String,
    /// Floating-point operations.
    pub flops: f64,
    /// The fewest bytes that must cross the memory bus.
    pub least_bytes: f64,
    /// Whether a launch in a real model finds cold caches. A launch on a KV cache does: between two uses of a
    /// KV cache, the model reads all its other memory.
    pub cold: bool,
    work: Box<dyn Fn() -> Box<dyn Work>>,
}

impl Workload {
    /// Creates a workload. Each call of `work` makes the inputs again.
    pub(super) fn new<W: Work + 'static>(
        label: String,
        [flops, least_bytes]: [f64; 2],
        cold: bool,
        work: impl Fn() -> W + 'static,
    ) -> Self {
        Workload { label, flops, least_bytes, cold, work: Box::new(move || Box::new(work())) }
    }

    /// Makes the inputs.
    pub(crate) fn work(&self) -> Box<dyn Work> {
        (self.work)()
    }
}

/// Maximum number of bytes per shape.
const MOST: f64 = 64.0 * (1u64 << 30) as f64;

/// Checks that the size of inputs and outputs is plausible.
pub(super) fn fits(bytes: f64) -> Result<(), Error> {
    if bytes <= MOST {
        return Ok(());
    }
    let most = MOST / f64::from(1u32 << 30);
    Err(Error::Invalid(format!("{bytes:.3e} bytes of tensors: `bench` measures at most {most} GiB")))
}
