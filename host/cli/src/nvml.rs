//! NVIDIA's management library (NVML): clocks, power, temperature and driver version of a GPU. The driver
//! brings the library. This module opens the library if it exists.
use libloading::{Library, Symbol};
use serde::Serialize;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(windows)]
const NAME: &str = "nvml.dll";
#[cfg(not(windows))]
const NAME: &str = "libnvidia-ml.so.1";

/// Interval between two readings of the clocks during a measurement.
const PERIOD: Duration = Duration::from_millis(40);
/// NVML's indices of the clocks of SM and memory.
const CLOCKS: [c_uint; 2] = [1, 2];
/// Maximum length of a text that NVML returns.
const TEXT: usize = 96;

type Code = c_int;
type Device = *mut c_void;

/// A GPU in NVML.
pub(super) struct Gpu {
    library: Library,
    device: Device,
}

// SAFETY: any thread may call NVML's functions, with handles from any thread.
unsafe impl Send for Gpu {}
// SAFETY: any thread may call NVML's functions, also at the same time as others.
unsafe impl Sync for Gpu {}

/// The present state of a GPU. A value that the GPU does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct State {
    /// Clock of the SMs in MHz.
    pub sm_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<u32>,
    /// Present power in watts.
    pub watts: Option<f64>,
    /// Power limit in watts.
    pub most_watts: Option<f64>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<u32>,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |x: Option<f64>| x.map_or("unknown".to_owned(), |x| format!("{x:.0}"));
        let [sm, memory, celsius] =
            [self.sm_mhz, self.memory_mhz, self.celsius].map(|x| number(x.map(f64::from)));
        let (watts, most) = (number(self.watts), number(self.most_watts));
        write!(f, "SM {sm} MHz, memory {memory} MHz, {watts} of {most} W, {celsius} C")
    }
}

impl Gpu {
    /// Opens the CUDA device with this ordinal.
    ///
    /// # Errors
    /// Returns the reason why NVML knows nothing about the device.
    pub(super) fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        // SAFETY: the library's initialisers may run in any program, at any time.
        let library = unsafe { Library::new(NAME) }.map_err(|e| format!("no {NAME}: {e}"))?;
        let mut gpu = Gpu { library, device: std::ptr::null_mut() };
        // SAFETY: the function has this name and signature, and may be called any number of times.
        check("nvmlInit_v2", unsafe { gpu.function::<unsafe extern "C" fn() -> Code>("nvmlInit_v2")?() })?;
        gpu.device = match address(ordinal) {
            Some(address) => {
                type ByAddress = unsafe extern "C" fn(*const c_char, *mut Device) -> Code;
                let (name, mut device) = ("nvmlDeviceGetHandleByPciBusId_v2", std::ptr::null_mut());
                // SAFETY: the function has this signature. The call reads a text that ends with 0, and writes
                // one handle.
                check(name, unsafe { gpu.function::<ByAddress>(name)?(address.as_ptr(), &mut device) })?;
                device
            }
            None => {
                type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> Code;
                let (name, mut device) = ("nvmlDeviceGetHandleByIndex_v2", std::ptr::null_mut());
                // SAFETY: the function has this signature, and writes one handle.
                check(name, unsafe { gpu.function::<ByIndex>(name)?(ordinal, &mut device) })?;
                device
            }
        };
        Ok(Arc::new(gpu))
    }

    /// Returns a function of the library.
    fn function<F: Copy>(&self, name: &str) -> Result<Symbol<'_, F>, String> {
        // SAFETY: each caller states that the signature is the function's.
        unsafe { self.library.get(name.as_bytes()) }.map_err(|e| format!("{NAME} has no {name}: {e}"))
    }

    /// Returns the number that a function of the device returns, or `None` on an error.
    fn number(&self, name: &str) -> Option<u32> {
        type Ask = unsafe extern "C" fn(Device, *mut c_uint) -> Code;
        let mut value = 0;
        // SAFETY: every name that is passed here has this signature, and writes one number.
        let code = unsafe { self.function::<Ask>(name).ok()?(self.device, &mut value) };
        (code == 0).then_some(value)
    }

    /// Like `number`, for functions with one more argument.
    fn number_of(&self, name: &str, kind: c_uint) -> Option<u32> {
        type Ask = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> Code;
        let mut value = 0;
        // SAFETY: every name that is passed here has this signature, and the function writes one number.
        let code = unsafe { self.function::<Ask>(name).ok()?(self.device, kind, &mut value) };
        (code == 0).then_some(value)
    }

    /// Returns the present state.
    pub(super) fn state(&self) -> State {
        let [sm_mhz, memory_mhz] = CLOCKS.map(|clock| self.number_of("nvmlDeviceGetClockInfo", clock));
        let watts = |name| self.number(name).map(|milliwatts| f64::from(milliwatts) / 1e3);
        State {
            sm_mhz,
            memory_mhz,
            watts: watts("nvmlDeviceGetPowerUsage"),
            most_watts: watts("nvmlDeviceGetEnforcedPowerLimit"),
            celsius: self.number_of("nvmlDeviceGetTemperature", 0),
        }
    }

    /// Returns the highest clocks of the SMs and of the memory, in MHz.
    pub(super) fn most(&self) -> [Option<u32>; 2] {
        CLOCKS.map(|clock| self.number_of("nvmlDeviceGetMaxClockInfo", clock))
    }

    /// Returns the version of the display driver.
    pub(super) fn driver(&self) -> Option<String> {
        type Ask = unsafe extern "C" fn(*mut c_char, c_uint) -> Code;
        let mut text = [0u8; TEXT];
        let ask = self.function::<Ask>("nvmlSystemGetDriverVersion").ok()?;
        // SAFETY: the function has this signature, and writes at most `TEXT` bytes.
        let code = unsafe { ask(text.as_mut_ptr().cast(), TEXT as c_uint) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| code == 0)?;
        Some(text.to_string_lossy().into_owned())
    }
}

/// Returns the PCI address of a CUDA device. CUDA and NVML both identify a device by this address. Returns
/// `None` without a driver.
fn address(ordinal: u32) -> Option<std::ffi::CString> {
    let (mut device, mut text) = (0, [0u8; TEXT]);
    // SAFETY: cuInit may be called at any time.
    libcuda::check(unsafe { libcuda::cuInit(0) }).ok()?;
    // SAFETY: the call writes one number.
    libcuda::check(unsafe { libcuda::cuDeviceGet(&mut device, ordinal as c_int) }).ok()?;
    // SAFETY: the device exists; the call writes at most `TEXT` bytes.
    let code = unsafe { libcuda::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), TEXT as c_int, device) };
    libcuda::check(code).ok()?;
    CStr::from_bytes_until_nul(&text).ok().map(CStr::to_owned)
}

fn check(name: &str, code: Code) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{name} failed with code {code}")) }
}

/// Reads a GPU's clock during a measurement.
pub(super) struct Watch {
    seen: Arc<Mutex<Vec<(Instant, u32)>>>,
    _end: Option<mpsc::Sender<()>>,
}

impl Watch {
    /// Starts to read. Dropping the value stops the reading. Without a GPU, nothing is read.
    pub(super) fn new(gpu: Option<Arc<Gpu>>) -> Self {
        let seen = Arc::new(Mutex::new(vec![]));
        let Some(gpu) = gpu else { return Watch { seen, _end: None } };
        let (end, ended) = mpsc::channel();
        let own = Arc::clone(&seen);
        thread::spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                if let Some(mhz) = gpu.number_of("nvmlDeviceGetClockInfo", CLOCKS[0]) {
                    own.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), mhz));
                }
            }
        });
        Watch { seen, _end: Some(end) }
    }

    /// Returns the SM clocks in MHz that were read since `begin`, and forgets older readings.
    pub(super) fn since(&self, begin: Instant) -> Vec<u32> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let clocks = seen.iter().filter(|(at, _)| *at >= begin).map(|(_, mhz)| *mhz).collect();
        seen.clear();
        clocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_so() {
        assert_eq!(
            State::default().to_string(),
            "SM unknown MHz, memory unknown MHz, unknown of unknown W, unknown C"
        );
        let state = State { sm_mhz: Some(1980), watts: Some(71.6), ..State::default() };
        assert_eq!(state.to_string(), "SM 1980 MHz, memory unknown MHz, 72 of unknown W, unknown C");
        assert!(Watch::new(None).since(Instant::now()).is_empty());
    }

    #[test]
    fn a_gpu_is_there_or_a_reason() {
        match Gpu::open(0) {
            Ok(gpu) => assert!(gpu.state().sm_mhz.is_some() && gpu.driver().is_some()),
            Err(why) => assert!(why.contains(NAME) || why.contains("nvml"), "{why}"),
        }
    }
}
