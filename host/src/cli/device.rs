//! What attention is computed on: a GPU, the simulator, or the CPU.
use super::console::Console;
use super::error::Error;
use super::options::{DeviceKind, DeviceOptions};
use crate::reference::fuzz::Fuzz;
use crate::reference::{Loaded, Memory, Outcome, Soak, exact};
use crate::{Attention, Capabilities, Driver, EntryInfo, Tuning};
use std::fmt;
use std::time::Duration;

/// A device of the command line.
pub(super) enum Device {
    /// Kernels run.
    Kernels {
        /// On this.
        runner: Box<dyn Runner>,
        /// In words: `NVIDIA L4 (simulated)`.
        name: String,
    },
    /// The reference runs.
    Cpu,
}

/// Results of one attention.
pub(super) struct Results {
    /// The kernel that ran.
    pub kernel: Option<&'static str>,
    /// O as `Memory::o` places it.
    pub o: Vec<u16>,
    /// LSE, `[batch, heads, seqlen]`.
    pub lse: Vec<f32>,
}

/// Takes a kernel's name and a number of launches.
pub(super) type Stopwatch<'a> = dyn FnMut(&'static str, usize) -> Result<Duration, crate::Error> + 'a;

/// [`Attention`] on any driver.
pub(super) trait Runner {
    /// The device's limits.
    fn capabilities(&self) -> &Capabilities;
    /// Runs one problem.
    fn run(&self, memory: &Memory, config: Option<&str>) -> Result<Outcome, crate::Error>;
    /// As [`Soak::run`], against a first run.
    fn soak(&self, memory: &Memory, config: &str, soak: Soak) -> Result<usize, crate::Error>;
    /// As [`Fuzz::run`].
    fn fuzz(&self, fuzz: &Fuzz) -> Result<Vec<String>, crate::Error>;
    /// Device memory in use, in bytes, where the driver knows.
    fn memory_in_use(&self) -> Result<Option<u64>, crate::Error>;
    /// What measures the device time of so many launches of a kernel on one problem, one after the other.
    fn stopwatch<'a>(&'a self, memory: &'a Memory) -> Result<Box<Stopwatch<'a>>, crate::Error>;
}

impl<D: Driver> Runner for Attention<D> {
    fn capabilities(&self) -> &Capabilities {
        self.capabilities()
    }

    fn run(&self, memory: &Memory, config: Option<&str>) -> Result<Outcome, crate::Error> {
        Loaded::new(self, memory, config)?.run()
    }

    fn soak(&self, memory: &Memory, config: &str, soak: Soak) -> Result<usize, crate::Error> {
        let expected = self.run(memory, Some(config))?;
        soak.run(self, memory, config, &expected)
    }

    fn fuzz(&self, fuzz: &Fuzz) -> Result<Vec<String>, crate::Error> {
        fuzz.run(self)
    }

    fn memory_in_use(&self) -> Result<Option<u64>, crate::Error> {
        self.driver().memory_in_use()
    }

    fn stopwatch<'a>(&'a self, memory: &'a Memory) -> Result<Box<Stopwatch<'a>>, crate::Error> {
        let mut loaded = Loaded::new(self, memory, None)?;
        Ok(Box::new(move |config, launches| loaded.time(config, launches)))
    }
}

impl Device {
    /// Opens what was asked for. `auto` says what it found on standard error where that is not a GPU.
    pub(super) fn open(options: &DeviceOptions, console: &Console) -> Result<Self, Error> {
        match options.kind()? {
            DeviceKind::Gpu => Self::gpu(),
            DeviceKind::Sim => Self::simulator(options.profile()),
            DeviceKind::Cpu => Ok(Device::Cpu),
            DeviceKind::Auto => {
                let no_gpu = match Self::gpu() {
                    Ok(device) => return Ok(device),
                    Err(error) => error,
                };
                let device = Self::simulator(options.profile()).unwrap_or(Device::Cpu);
                console.note(format_args!("no GPU ({no_gpu}); using {device}"));
                Ok(device)
            }
        }
    }

    /// The first GPU of this machine.
    pub(super) fn gpu() -> Result<Self, Error> {
        let driver = open_cuda().map_err(|e| Error::NoDevice(e.to_string()))?;
        let name = driver.capabilities().name.to_string();
        let tuning = Tuning::from_environment()?;
        Ok(Device::Kernels { runner: Box::new(Attention::with_tuning(driver, tuning)), name })
    }

    /// The same as the planner's own table sees it.
    pub(super) fn untuned_gpu() -> Result<Self, Error> {
        let driver = open_cuda().map_err(|e| Error::NoDevice(e.to_string()))?;
        let name = driver.capabilities().name.to_string();
        Ok(Device::Kernels { runner: Box::new(Attention::new(driver)), name })
    }

    /// The simulator as a card of `Capabilities::PROFILES`.
    fn simulator(profile: &str) -> Result<Self, Error> {
        let driver = crate::SimDriver::new(profile)?;
        let name = driver.capabilities().name.to_string();
        Ok(Device::Kernels { runner: Box::new(Attention::new(driver)), name })
    }

    /// What runs kernels, if this does.
    pub(super) fn runner(&self) -> Option<&dyn Runner> {
        match self {
            Device::Kernels { runner, .. } => Some(runner.as_ref()),
            Device::Cpu => None,
        }
    }

    /// Computes attention. `config` names a kernel.
    pub(super) fn run(&self, memory: &Memory, config: Option<&str>) -> Result<Results, Error> {
        match self {
            Device::Kernels { runner, .. } => {
                let outcome = runner.run(memory, config).map_err(Error::from)?;
                Ok(Results { kernel: Some(outcome.entry), o: outcome.o().to_vec(), lse: outcome.lse().to_vec() })
            }
            Device::Cpu => {
                // Validation is planning's, and planning needs no device.
                crate::supports(&memory.problem, &Capabilities::PROFILES[0].1)?;
                if let Some(name) = config {
                    entries(name)?;
                    return Err(Error::Invalid(format!(
                        "--config {name}: the CPU runs the reference and no kernel; use another --device"
                    )));
                }
                let inputs = memory.inputs().map_err(|e| Error::Invalid(e.to_string()))?;
                let outputs = exact(&inputs);
                let lse = outputs.lse.iter().map(|x| *x as f32).collect();
                Ok(Results { kernel: None, o: memory.place(&outputs), lse })
            }
        }
    }
}

/// CUDA device 0.
#[cfg(feature = "cust")]
pub(super) fn open_cuda() -> Result<impl Driver, crate::Error> {
    crate::CustDriver::new(0)
}

/// CUDA device 0.
#[cfg(not(feature = "cust"))]
pub(super) fn open_cuda() -> Result<impl Driver, crate::Error> {
    crate::RawDriver::primary(0)
}

/// The entries that a name stands for: one of the table, or a configuration of the lineage.
pub(super) fn entries(name: &str) -> Result<Vec<&'static EntryInfo>, Error> {
    Ok(crate::lineage::entries(name)?)
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        let text = error.to_string();
        match error {
            crate::Error::Driver { .. } => Error::Device(text),
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
