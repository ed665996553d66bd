//! The device that computes attention: a GPU, the simulator, or the CPU.
use super::console::Console;
use super::ended;
use super::error::Error;
use super::options::{DeviceKind, DeviceOptions};
use super::results::{Results, Took};
use super::run::cache::Input as Cached;
use super::words;
use ferroflash::driver::Driver;
use ferroflash::driver::Harness;
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
    Kernels {
        /// Runs the kernels.
        runner: Box<dyn Runner>,
        /// The device's name, for example `NVIDIA L4 (simulated)`.
        name: String,
        /// Whether the device is the simulator.
        is_simulated: bool,
    },
    /// The CPU, which computes the reference.
    Cpu,
}

/// Seconds that the simulator needs per launch of a soak. `verify --soak 1000` launches 124 kernels 2000
/// times each, which would take 28 hours.
const SECONDS_A_LAUNCH: f64 = 0.4;

/// Most launches of a soak between two looks for a signal, in the simulator: seconds of work. On a GPU, a
/// whole round takes less.
const PART: usize = 20;

/// A function that takes a kernel's name and a number of launches, and returns the device time.
pub(super) type Stopwatch<'a> = dyn FnMut(&'static str, usize) -> Result<Duration, ferroflash::Error> + 'a;

/// [`Attention`] on any driver.
pub(super) trait Runner {
    /// Returns the device's limits.
    fn capabilities(&self) -> &Capabilities;
    /// Returns the form in which a kernel is loaded: `cubin` or `PTX`.
    fn form(&self, contract: &Contract) -> &'static str;
    /// Runs every round of a problem of any family.
    fn run(&self, work: &dyn Work, config: Option<&str>) -> Result<Vec<Written>, ferroflash::Error>;
    /// Captures one launch as a graph, and enqueues the graph for each round.
    fn replay(&self, work: &dyn Work, config: Option<&str>) -> Result<Vec<Written>, ferroflash::Error>;
    /// Runs one attention, and returns its results and the time of each step.
    fn run_timed(&self, memory: &Memory, config: Option<&str>) -> Result<(Outcome, Took), ferroflash::Error>;
    /// Runs attention on a cache.
    fn decode(&self, input: &Cached, config: Option<&str>) -> Result<Results, ferroflash::Error>;
    /// Runs [`Soak::run`] against a first launch, in parts of at most `part` launches, until a signal asks
    /// the command to end. Returns the number of launches, and of launches that differ from the first.
    fn soak(
        &self,
        work: &dyn Work,
        config: &str,
        soak: Soak,
        part: usize,
    ) -> Result<[usize; 2], ferroflash::Error>;
    /// Runs [`Fuzz::run`].
    fn fuzz(&self, fuzz: &Fuzz) -> Result<Findings, ferroflash::Error>;
    /// Returns the number of bytes of device memory in use, if the driver knows it.
    fn memory_in_use(&self) -> Result<Option<u64>, ferroflash::Error>;
    /// Returns a stopwatch for the device time of consecutive launches of one kernel on one problem.
    fn stopwatch<'a>(&'a self, memory: &'a Memory) -> Result<Box<Stopwatch<'a>>, ferroflash::Error>;
}

impl<D: Harness> Runner for Attention<D> {
    fn capabilities(&self) -> &Capabilities {
        self.capabilities()
    }

    fn form(&self, contract: &Contract) -> &'static str {
        self.form(contract)
    }

    fn run(&self, work: &dyn Work, config: Option<&str>) -> Result<Vec<Written>, ferroflash::Error> {
        OnDevice::new(self, work, config)?.run_all()
    }

    fn replay(&self, work: &dyn Work, config: Option<&str>) -> Result<Vec<Written>, ferroflash::Error> {
        OnDevice::new(self, work, config)?.replay_all()
    }

    fn run_timed(&self, memory: &Memory, config: Option<&str>) -> Result<(Outcome, Took), ferroflash::Error> {
        let start = Instant::now();
        let loaded = Loaded::new(self, memory, config)?;
        let upload = start.elapsed();
        let (outcome, [load, kernel]) = loaded.run_timed()?;
        Ok((outcome, Took::on_device([upload, load, kernel])))
    }

    fn decode(&self, input: &Cached, config: Option<&str>) -> Result<Results, ferroflash::Error> {
        input.launch(self, config)
    }

    fn soak(
        &self,
        work: &dyn Work,
        config: &str,
        soak: Soak,
        part: usize,
    ) -> Result<[usize; 2], ferroflash::Error> {
        let expected = OnDevice::new(self, work, Some(config))?.run()?;
        let (mut launched, mut differing) = (0, 0);
        while launched < soak.launches && !ended::asked() {
            let part = Soak { launches: part.min(soak.launches - launched), ..soak };
            differing += part.run(self, work, config, &expected)?;
            launched += part.launches;
        }
        Ok([launched, differing])
    }

    fn fuzz(&self, fuzz: &Fuzz) -> Result<Findings, ferroflash::Error> {
        fuzz.run(self)
    }

    fn memory_in_use(&self) -> Result<Option<u64>, ferroflash::Error> {
        self.driver().memory_in_use()
    }

    fn stopwatch<'a>(&'a self, memory: &'a Memory) -> Result<Box<Stopwatch<'a>>, ferroflash::Error> {
        let mut loaded = Loaded::new(self, memory, None)?;
        Ok(Box::new(move |config, launches| loaded.time(config, launches)))
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
        let driver = open_cuda(ordinal)?;
        let name = driver.capabilities().name.to_string();
        let runner = Box::new(Attention::with_tuning(driver, tuning));
        Ok(Device::Kernels { runner, name, is_simulated: false })
    }

    /// Returns a GPU of this machine, without measurements.
    pub(super) fn untuned_gpu(ordinal: u32) -> Result<Self, Error> {
        let driver = open_cuda(ordinal)?;
        let name = driver.capabilities().name.to_string();
        Ok(Device::Kernels { runner: Box::new(Attention::new(driver)), name, is_simulated: false })
    }

    /// Returns the simulator of a card of `Capabilities::PROFILES`, with that card's measurements.
    fn simulator(profile: &str, console: &Console) -> Result<Self, Error> {
        let (tuning, driver) = (tuning(console)?, ferroflash::driver::SimDriver::new(profile)?);
        let name = driver.capabilities().name.to_string();
        let runner = Box::new(Attention::with_tuning(driver, tuning));
        Ok(Device::Kernels { runner, name, is_simulated: true })
    }

    /// Returns whether the device is the simulator.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self, Device::Kernels { is_simulated: true, .. })
    }

    /// Returns the runner of kernels, if the device has one.
    pub(super) fn runner(&self) -> Option<&dyn Runner> {
        match self {
            Device::Kernels { runner, .. } => Some(runner.as_ref()),
            Device::Cpu => None,
        }
    }

    /// Returns the runner of kernels, for a command that needs one.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the device is the CPU.
    pub(super) fn kernels(&self, command: &str) -> Result<&dyn Runner, Error> {
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
    pub(super) fn explained(&self, error: ferroflash::Error, config: Option<&str>) -> Error {
        match self {
            Device::Kernels { runner, is_simulated: true, .. } => {
                Error::of_simulator(error, runner.capabilities(), config)
            }
            _ => error.into(),
        }
    }

    /// Computes attention. `config` may name a kernel.
    pub(super) fn run(&self, memory: &Memory, config: Option<&str>) -> Result<Results, Error> {
        match self {
            Device::Kernels { runner, .. } => {
                let (outcome, took) =
                    runner.run_timed(memory, config).map_err(|e| self.explained(e, config))?;
                let (o, rows) = (outcome.o().to_vec(), outcome.values());
                let (kernel, reason) = (Some(outcome.entry), Some(outcome.reason));
                Ok(self.timed(Results { kernel, reason, o, rows, took }))
            }
            Device::Cpu => {
                // Planning validates the problem. It needs no device.
                explain(&memory.problem, &Capabilities::PROFILES[0].1, Scratch::Fastest)?;
                if let Some(name) = config {
                    super::options::entries(Some(name))?;
                    return Err(Self::has_no_kernel(name));
                }
                let inputs = memory.inputs().map_err(|e| Error::Invalid(e.to_string()))?;
                let start = Instant::now();
                let outputs = exact(&inputs);
                let took = Took::on_cpu(start.elapsed());
                let (o, rows) = (memory.place(&outputs), memory.place_rows(&outputs));
                Ok(Results { kernel: None, reason: None, o, rows, took })
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
pub(super) fn open_cuda(ordinal: u32) -> Result<impl Harness, Error> {
    #[cfg(feature = "cust")]
    let driver = ferroflash::driver::CustDriver::new(ordinal);
    #[cfg(not(feature = "cust"))]
    let driver = ferroflash::driver::RawDriver::primary(ordinal);
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
            Device::Kernels { name, .. } => f.write_str(name),
            Device::Cpu => f.write_str("the CPU (f64 reference)"),
        }
    }
}
