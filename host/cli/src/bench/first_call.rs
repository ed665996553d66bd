//! Measures the time that a process needs before its first output.
use crate::error::Error;
use ferroflash::driver::Harness;
use ferroflash::driver::RawDriver;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use reference::{Binder, Layout, Memory};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Milliseconds of each step, in the order of the steps.
#[derive(Serialize)]
pub(super) struct FirstCall {
    device: String,
    problem: String,
    entry: &'static str,
    /// The form of the kernel: `PTX`, which the driver compiles, or `cubin`.
    loaded_from: &'static str,
    /// Whether the driver may have taken the compiled kernel from its own cache on disk.
    compiler_cache: bool,
    /// Opening the driver, the driver's start-up, and creating the device's context.
    driver_ms: f64,
    /// Allocating, and copying inputs.
    inputs_ms: f64,
    /// Planning and loading the kernel.
    load_ms: f64,
    /// Launching, waiting, and copying the output.
    launch_ms: f64,
    /// The time from the first line of the program to the end of the last step.
    total_ms: f64,
}

/// Measures the headline shape once.
pub(super) fn run(start: Instant, ordinal: u32) -> Result<FirstCall, Error> {
    let problem = Problem::new(DType::F16, 1, 512, 8, 64).mask(Mask::Causal);
    let mut at = start;
    let mut step = || {
        let before = std::mem::replace(&mut at, Instant::now());
        at.duration_since(before).as_secs_f64() * 1e3
    };
    let driver = RawDriver::primary(ordinal).map_err(|e| Error::NoDevice(e.to_string()))?;
    let driver_ms = step();

    let memory = Memory::random(problem, Layout::Bshd, 1);
    let attention = Attention::new(driver);
    let driver = attention.driver();
    let stream = driver.stream()?;
    let mut inputs = Vec::new();
    for bits in &memory.buffers {
        let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let mut buffer = driver.allocate(bytes.len())?;
        driver.upload(&mut buffer, &bytes)?;
        inputs.push(buffer);
    }
    let mut out = vec![0; memory.o.span() * problem.dtype.bytes()];
    let rows = memory.lse_shape().iter().product::<usize>();
    let (o, lse) = (driver.allocate(out.len())?, driver.allocate(rows * 4)?);
    let inputs_ms = step();

    let addresses: Vec<_> = inputs.iter().map(|buffer| driver.address(buffer)).collect();
    let forward =
        memory.request(&mut Binder::at(Some(&addresses), None), driver.address(&o), driver.address(&lse));
    let plan = attention.plan(&forward)?;
    attention.load(&plan)?;
    let load_ms = step();

    // SAFETY: the buffers live until the wait for the stream, and no other work uses them.
    unsafe { attention.launch(&plan, &forward, &stream)? };
    driver.synchronize(&stream)?;
    driver.download(&o, &mut out)?;
    let launch_ms = step();
    Ok(FirstCall {
        device: attention.capabilities().name.to_string(),
        problem: problem.to_string(),
        entry: plan.contract().symbol,
        loaded_from: attention.loaded_from(&plan),
        compiler_cache: std::env::var_os("CUDA_CACHE_DISABLE").is_none_or(|value| value != "1"),
        driver_ms,
        inputs_ms,
        load_ms,
        launch_ms,
        total_ms: driver_ms + inputs_ms + load_ms + launch_ms,
    })
}

impl fmt::Display for FirstCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "first call on {}: {} with {}", self.device, self.problem, self.entry)?;
        let cache = match (self.loaded_from, self.compiler_cache) {
            ("PTX", true) => " (perhaps from the driver's cache: CUDA_CACHE_DISABLE=1 turns it off)",
            ("PTX", false) => ", compiled now",
            _ => "",
        };
        writeln!(f, "{:>9.1} ms  the driver's start-up", self.driver_ms)?;
        writeln!(f, "{:>9.1} ms  memory and inputs", self.inputs_ms)?;
        writeln!(f, "{:>9.1} ms  kernel from {}{cache}", self.load_ms, self.loaded_from)?;
        writeln!(f, "{:>9.1} ms  launch, and the output back", self.launch_ms)?;
        writeln!(f, "{:>9.1} ms  in all", self.total_ms)
    }
}
