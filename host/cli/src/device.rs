//! The device that computes attention: a GPU, the simulator, or the CPU.
use super::console::Console;
use super::ended;
use super::error::Error;
use super::options::{DeviceKind, DeviceOptions};
use super::results::{Results, Took};
use super::run::cache::Input as Cached;
use super::words;
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::kernels::Contract;
use ferroflash::plan::explain;
use ferroflash::request::Scratch;
use ferroflash::tuning::Tuning;
use ferroflash::{Attention, Capabilities};
use reference::fuzz::{Findings, Fuzz};
use reference::{Loaded, Memory, OnDevice, Outcome, Soak, Work, Written, exact};
use std::fmt;
use std::time::{Duration, Instant};

/// A device of the command line.
pub(super) enum Device {
    /// A device that runs kernels.
    Kernels(Runner),
    /// The CPU, which computes the reference.
    Cpu,
}

/// [`Attention`] on a device that runs kernels.
pub(super) enum Runner {
    Gpu(Box<Attention<Gpu>>),
    Simulator(Box<Attention<SimDriver>>),
}

/// The driver of GPUs.
#[cfg(feature = "cust")]
pub(super) type Gpu = ferroflash::driver::CustDriver;
#[cfg(not(feature = "cust"))]
pub(super) type Gpu = ferroflash::driver::RawDriver;

/// Evaluates an expression with the [`Attention`] of a runner, on either driver.
macro_rules! on {
    ($runner:expr, $attention:ident => $do:expr) => {
        match $runner {
            Runner::Gpu($attention) => $do,
            Runner::Simulator($attention) => $do,
        }
    };
}

/// Seconds that the simulator needs per launch of a soak. `verify --soak 1000` launches 124 kernels 2000
/// times each, which would take 28 hours.
const SECONDS_A_LAUNCH: f64 = 0.4;

/// Most launches of a soak between two looks for a signal, in the simulator: seconds of work. On a GPU, a
/// whole round takes less.
const PART: usize = 20;

/// A function that takes a kernel's name and a number of launches, and returns the device time.
pub(super) type Stopwatch<'a> = dyn FnMut(&'static str, usize) -> Result<Duration, ferroflash::Error> + 'a;

/// The result of launches.
type Launched<T> = Result<T, ferroflash::Error>;

impl Runner {
    /// Returns the device's limits.
    pub(super) fn capabilities(&self) -> &Capabilities {
        on!(self, attention => attention.capabilities())
    }

    /// Returns the form in which a kernel is loaded: `cubin` or `PTX`.
    pub(super) fn form(&self, contract: &Contract) -> &'static str {
        on!(self, attention => attention.form(contract))
    }

    /// Runs every round of a problem of any family.
    pub(super) fn run(&self, work: &dyn Work, config: Option<&str>) -> Launched<Vec<Written>> {
        on!(self, attention => OnDevice::new(attention, work, config)?.run_all())
    }

    /// Captures one launch as a graph, and enqueues the graph for each round.
    pub(super) fn replay(&self, work: &dyn Work, config: Option<&str>) -> Launched<Vec<Written>> {
        on!(self, attention => OnDevice::new(attention, work, config)?.replay_all())
    }

    /// Runs one attention, and returns its results and the time of each step.
    fn run_timed(&self, memory: &Memory, config: Option<&str>) -> Launched<(Outcome, Took)> {
        let start = Instant::now();
        on!(self, attention => {
            let loaded = Loaded::new(attention, memory, config)?;
            let upload = start.elapsed();
            let (outcome, [load, kernel]) = loaded.run_timed()?;
            Ok((outcome, Took::on_device([upload, load, kernel])))
        })
    }

    /// Runs attention on a cache.
    pub(super) fn decode(&self, input: &Cached, config: Option<&str>) -> Launched<Results> {
        on!(self, attention => input.launch(attention, config))
    }

    /// Runs [`Soak::run`] against a first launch, in parts of at most `part` launches, until a signal asks
    /// the command to end. Returns the number of launches, and of launches that differ from the first.
    pub(super) fn soak(
        &self,
        work: &dyn Work,
        config: &str,
        soak: Soak,
        part: usize,
    ) -> Launched<[usize; 2]> {
        on!(self, attention => {
            let expected = OnDevice::new(attention, work, Some(config))?.run()?;
            let (mut launched, mut differing) = (0, 0);
            while launched < soak.launches && !ended::asked() {
                let part = Soak { launches: part.min(soak.launches - launched), ..soak };
                differing += part.run(attention, work, config, &expected)?;
                launched += part.launches;
            }
            Ok([launched, differing])
        })
    }

    /// Runs [`Fuzz::run`].
    pub(super) fn fuzz(&self, fuzz: &Fuzz) -> Launched<Findings> {
        on!(self, attention => fuzz.run(attention))
    }

    /// Returns the number of bytes of device memory in use, if the driver knows it.
    pub(super) fn memory_in_use(&self) -> Launched<Option<u64>> {
        on!(self, attention => attention.driver().memory_in_use())
    }

    /// Returns a stopwatch for the device time of consecutive launches of one kernel on one problem.
    pub(super) fn stopwatch<'a>(&'a self, memory: &'a Memory) -> Launched<Box<Stopwatch<'a>>> {
        on!(self, attention => {
            let mut loaded = Loaded::new(attention, memory, None)?;
            Ok(Box::new(move |config, launches| loaded.time(config, launches)))
        })
    }
}

impl Device {
    /// Opens the requested device. If `auto` finds no GPU, this function prints the device that it uses to
    /// standard error.
    pub(super) fn open(options: &DeviceOptions, console: &Console) -> Result<Self, Error> {
        match options.kind()? {
            DeviceKind::Gpu(ordinal) => Self::gpu(ordinal, console),
            DeviceKind::Sim => Self::simulator(options.profile(), console),
            DeviceKind::Cpu => Ok(Device::Cpu),
            DeviceKind::Auto => match Self::gpu(0, console) {
                Err(Error::NoDevice(why)) => {
                    let device = Self::simulator(options.profile(), console)?;
                    console.note(format_args!("no GPU ({why}); using {device}"));
                    Ok(device)
                }
                opened => opened,
            },
        }
    }

    /// Returns a GPU of this machine, with its measurements.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] if there is no GPU. An invalid tuning file is an error whether there is a
    /// GPU or not.
    pub(super) fn gpu(ordinal: u32, console: &Console) -> Result<Self, Error> {
        let tuning = tuning(console)?;
        Ok(Device::Kernels(Runner::Gpu(Attention::with_tuning(open_cuda(ordinal)?, tuning).into())))
    }

    /// Returns a GPU of this machine, without measurements.
    pub(super) fn untuned_gpu(ordinal: u32) -> Result<Self, Error> {
        Ok(Device::Kernels(Runner::Gpu(Attention::new(open_cuda(ordinal)?).into())))
    }

    /// Returns the simulator of a card of `Capabilities::PROFILES`, with that card's measurements.
    fn simulator(profile: &str, console: &Console) -> Result<Self, Error> {
        let attention = Attention::with_tuning(SimDriver::new(profile)?, tuning(console)?);
        Ok(Device::Kernels(Runner::Simulator(attention.into())))
    }

    /// Returns whether the device is the simulator.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self, Device::Kernels(Runner::Simulator(_)))
    }

    /// Returns the runner of kernels, if the device has one.
    pub(super) fn runner(&self) -> Option<&Runner> {
        match self {
            Device::Kernels(runner) => Some(runner),
            Device::Cpu => None,
        }
    }

    /// Returns the runner of kernels, for a command that needs one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the device is the CPU.
    pub(super) fn kernels(&self, command: &str) -> Result<&Runner, Error> {
        self.runner().ok_or_else(|| {
            Error::Invalid(format!(
                "{command} runs kernels, and --device cpu runs none; use --device gpu or --device sim"
            ))
        })
    }

    /// The number of launches of a soak between two looks for a signal.
    pub(super) fn part(&self) -> usize {
        if self.is_simulated() { PART } else { usize::MAX }
    }

    /// Checks that this number of launches is reasonable for the device. A soak takes hours in the simulator.
    /// If the user named the simulator, this function prints the expected time. Otherwise it returns an
    /// error.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the device is the simulator and the user did not name it.
    pub(super) fn affords(
        &self,
        launches: usize,
        options: &DeviceOptions,
        console: &Console,
    ) -> Result<(), Error> {
        let minutes = launches as f64 * SECONDS_A_LAUNCH / 60.0;
        if minutes < 10.0 || !self.is_simulated() {
            return Ok(());
        }
        let text = format!("{launches} launches on {self} take about {:.1} hours", minutes / 60.0);
        if options.kind()? == DeviceKind::Auto {
            let more =
                "this machine has no GPU; ask for fewer launches, or give --device sim to run them all";
            return Err(Error::Invalid(format!("{text}: {more}")));
        }
        console.note(text);
        Ok(())
    }

    /// Returns the error for a request to run a kernel on the CPU.
    pub(super) fn has_no_kernel(name: &str) -> Error {
        let what = "--device cpu runs no kernel; use --device gpu or --device sim";
        Error::Invalid(format!("--config {name}: {what}"))
    }

    /// Counts the time of a simulated kernel as the CPU's time, because the simulation is not as fast as the
    /// kernel.
    pub(super) fn timed(&self, mut results: Results) -> Results {
        if self.is_simulated() {
            results.took.cpu = results.took.kernel.take();
        }
        results
    }

    /// Returns the error of a launch that may have named a kernel.
    pub(super) fn explained(&self, error: ferroflash::Error, config: Option<&str>, work: &dyn Work) -> Error {
        match self {
            Device::Kernels(Runner::Simulator(attention)) => {
                Error::of_simulator(error, attention.capabilities(), config, work)
            }
            _ => error.into(),
        }
    }

    /// Computes attention. `config` may name a kernel.
    pub(super) fn run(&self, memory: &Memory, config: Option<&str>) -> Result<Results, Error> {
        match self {
            Device::Kernels(runner) => {
                let (outcome, took) =
                    runner.run_timed(memory, config).map_err(|e| self.explained(e, config, memory))?;
                let (o, rows) = (outcome.o().to_vec(), outcome.values());
                let (kernel, reason) = (Some(outcome.entry), Some(outcome.reason));
                let head_maxima = outcome.head_maxima();
                Ok(self.timed(Results { kernel, reason, o, rows, head_maxima, took }))
            }
            Device::Cpu => {
                // Planning validates the problem. It needs no device, but a card that has the precision.
                let plan = |on: &Capabilities| explain(&memory.problem, on, Scratch::Fastest);
                let (first, others) = (&Capabilities::PROFILES[0].1, &Capabilities::PROFILES[1..]);
                if let Err(error) = plan(first)
                    && !others.iter().any(|(_, on)| plan(on).is_ok())
                {
                    return Err(error.into());
                }
                if let Some(name) = config {
                    super::options::entries(Some(name))?;
                    return Err(Self::has_no_kernel(name));
                }
                let inputs = memory.inputs()?;
                let start = Instant::now();
                let outputs = exact(&inputs);
                let took = Took::on_cpu(start.elapsed());
                let (o, rows) = (memory.place(&outputs), memory.place_rows(&outputs));
                let maxima = rows.max_logits.as_ref().filter(|_| memory.head_maxima);
                let head_maxima = maxima.map(|all| memory.largest_of_heads(all));
                Ok(Results { kernel: None, reason: None, o, rows, head_maxima, took })
            }
        }
    }
}

/// Returns the measurements of `ferroflash sweep`.
fn tuning(console: &Console) -> Result<Tuning, Error> {
    let tuning = Tuning::from_environment()?;
    if let Some(entry) = tuning.outdated().next() {
        console.note(format_args!(
            "the tuning file names {entry}, which no longer exists: run `ferroflash sweep` again"
        ));
    }
    Ok(tuning)
}

/// Returns the reason `why` a command that measures or compares a GPU does not run, and the remedy.
pub(super) fn needs_gpu(why: &str, purpose: &str) -> String {
    format!("{why}; {purpose}; --device sim is a dry run without a GPU")
}

/// Returns a CUDA device.
///
/// # Errors
/// Returns [`Error::NoDevice`], with the driver's message.
pub(super) fn open_cuda(ordinal: u32) -> Result<Gpu, Error> {
    #[cfg(feature = "cust")]
    let driver = Gpu::new(ordinal);
    #[cfg(not(feature = "cust"))]
    let driver = Gpu::primary(ordinal);
    driver.map_err(|e| Error::NoDevice(e.to_string()))
}

impl From<ferroflash::Error> for Error {
    fn from(error: ferroflash::Error) -> Self {
        let text = words::of(&error);
        match error {
            ferroflash::Error::Driver { .. } => Error::Device(text),
            _ => Error::Invalid(text),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Kernels(runner) => f.write_str(&runner.capabilities().name),
            Device::Cpu => f.write_str("the CPU (f64 reference)"),
        }
    }
}
