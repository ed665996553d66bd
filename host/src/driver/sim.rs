//! The PTX simulator as a device. The simulator checks every launch.
use super::map::Encoding;
use super::{Driver, Harness, MapDescription, Sealed, harness};
use crate::capabilities::SIMULATED;
use crate::{Capabilities, Contract, DType, Error};
use ptx_sim::{Coverage, ElementType, Gpu, Launch, Module, Options, Profile, Report, Swizzle};
use spec::TensorMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A simulated GPU. A launch runs at once, on the calling thread. [`Harness::synchronize`] returns the first
/// finding of the checkers as an error; [`SimDriver::take_reports`] returns all findings.
///
/// ```
/// # fn main() -> Result<(), ferroflash::Error> {
/// use ferroflash::driver::{Harness, SimDriver};
/// use ferroflash::request::{AttentionRequest, TensorView};
/// use ferroflash::{Attention, DType};
///
/// let attention = Attention::new(SimDriver::new("h200")?);
/// let (card, shape) = (attention.driver(), [1, 2, 1, 64]); // batch, seqlen, heads, head_dim
/// let [mut q, mut k, mut v, o] = [(); 4].map(|()| card.allocate(2 * 64 * 2).expect("memory"));
/// for tensor in [&mut q, &mut k, &mut v] {
///     card.upload(tensor, &[0x00, 0x3c].repeat(2 * 64))?; // 1.0
/// }
/// let view = |buffer| TensorView::bshd(card.address(buffer), 2 * 64, DType::F16, shape);
/// let request = AttentionRequest::dense(view(&q), view(&k), view(&v), view(&o));
/// let (plan, stream) = (attention.plan(&request)?, card.stream()?);
/// // SAFETY: the buffers are as large as their views say, and nothing else uses them.
/// unsafe { attention.launch(&plan, &request, &stream)? };
/// card.synchronize(&stream)?; // fails if a checker found something
/// let mut ones = [0; 2 * 64 * 2];
/// card.download(&o, &mut ones)?;
/// assert!(ones.chunks(2).all(|number| number == [0x00, 0x3c]));
/// # Ok(())
/// # }
/// ```
pub struct SimDriver {
    gpu: Arc<Mutex<Gpu>>,
    capabilities: Capabilities,
    reports: Mutex<Vec<Report>>,
    coverage: Mutex<BTreeMap<String, (Coverage, u64)>>,
    /// Total bytes of live buffers.
    in_use: Arc<AtomicU64>,
}

impl SimDriver {
    /// Returns a card of [`Capabilities::PROFILES`], simulated with every check on.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if `profile` is not in [`Capabilities::PROFILES`].
    pub fn new(profile: &str) -> Result<Self, Error> {
        Self::with_options(profile, Options::default())
    }

    /// Returns a card of [`Capabilities::PROFILES`]. `options` set the checks, the schedule and the
    /// arithmetic.
    ///
    /// # Errors
    /// Returns the errors of [`SimDriver::new`].
    pub fn with_options(profile: &str, options: Options) -> Result<Self, Error> {
        Self::of_multiprocessors(profile, options, None)
    }

    /// Returns a card of [`Capabilities::PROFILES`] with `sms` streaming multiprocessors; `None` is the
    /// card's own number. With few SMs, persistent kernels compute several tiles per block even in small
    /// problems.
    ///
    /// # Errors
    /// Returns the errors of [`SimDriver::new`].
    pub fn of_multiprocessors(profile: &str, options: Options, sms: Option<u32>) -> Result<Self, Error> {
        let known = Capabilities::PROFILES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let unknown = || Error::invalid("profile", profile, format_args!("it must be one of {known}"));
        let name = profile.to_ascii_lowercase();
        let capabilities = Capabilities::profile(&name).ok_or_else(unknown)?;
        let profile = Profile::by_name(&name).map_err(|_| unknown())?;
        let sms = sms.unwrap_or(capabilities.sms).max(1);
        let profile = Profile { multiprocessors: sms, ..profile };
        let capabilities = Capabilities {
            name: format!("{}{SIMULATED}", capabilities.name).into(),
            sms,
            ..capabilities.clone()
        };
        let gpu = Arc::new(Mutex::new(Gpu::new(profile, options)));
        Ok(SimDriver {
            gpu,
            capabilities,
            reports: Mutex::default(),
            coverage: Mutex::default(),
            in_use: Arc::default(),
        })
    }

    /// Takes the findings of all launches since the last call. [`Harness::synchronize`] does not return them
    /// afterwards.
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut *lock(&self.reports))
    }

    /// Changes the settings of later launches.
    pub fn set_options(&self, options: Options) {
        *lock(&self.gpu).options_mut() = options;
    }

    /// Takes the coverage of each kernel's instructions in all launches since the last call, and the number
    /// of executed instructions. Both are empty unless [`Options::coverage`] is on.
    pub fn take_coverage(&self) -> BTreeMap<String, (Coverage, u64)> {
        std::mem::take(&mut *lock(&self.coverage))
    }

    /// Copies device memory from `address` on.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if one of the bytes belongs to no buffer.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Error> {
        lock(&self.gpu).read_allow_uninit(address, data).map_err(|e| failed("read", e))
    }

    /// Writes device memory from `address` on.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if one of the bytes belongs to no buffer.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), Error> {
        lock(&self.gpu).write(address, data).map_err(|e| failed("write", e))
    }

    /// Returns the first finding, as an error.
    fn findings(&self) -> Result<(), Error> {
        let reports = lock(&self.reports);
        let Some(first) = reports.first() else { return Ok(()) };
        let more = reports.len() - 1;
        let others = if more == 0 { String::new() } else { format!("\nand {more} more") };
        Err(failed("simulated launch", format!("{}{others}", first.display(false))))
    }
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimDriver").field(&self.capabilities.name).finish()
    }
}

/// A parsed kernel.
pub struct SimKernel {
    module: Module,
    symbol: String,
    threads: u32,
    smem_bytes: u32,
    dependent: bool,
}

/// Simulated device memory, freed when dropped. The checkers treat it as uninitialised at first.
pub struct SimBuffer {
    gpu: Arc<Mutex<Gpu>>,
    address: u64,
    bytes: usize,
    in_use: Arc<AtomicU64>,
}

/// A stream of the simulator: a launch has run when it returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimStream;

impl std::fmt::Debug for SimKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimKernel").field(&self.symbol).finish()
    }
}

impl std::fmt::Debug for SimBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimBuffer({:#x}, {} bytes)", self.address, self.bytes)
    }
}

impl Sealed for SimDriver {}

impl Driver for SimDriver {
    type Kernel = SimKernel;
    type Stream = SimStream;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn load(&self, ptx: &str, contract: &Contract) -> Result<SimKernel, Error> {
        let Contract { symbol, threads, smem_bytes, .. } = *contract;
        self.capabilities.runs(contract)?;
        let refused = |expected: String| {
            let file = crate::ptx::replacement(symbol).map(|file| file.display().to_string());
            Error::invalid("PTX", file.unwrap_or_else(|| symbol.to_owned()), expected)
        };
        let module = Module::parse(ptx).map_err(|e| refused(format!("the simulator cannot read it: {e}")))?;
        if module.entry(symbol).is_none() {
            return Err(refused(format!("it must have an entry {symbol}")));
        }
        let dependent = contract.is_dependent();
        Ok(SimKernel { module, symbol: symbol.into(), threads, smem_bytes, dependent })
    }

    fn tensor_map(&self, map: &MapDescription) -> Result<TensorMap, Error> {
        let Encoding { rank, dims, strides, box_dims } = map.encoding()?;
        let map = ptx_sim::TensorMap {
            element: match map.dtype {
                DType::E4m3 => ElementType::U8,
                DType::F16 => ElementType::F16,
                _ => ElementType::Bf16,
            },
            address: map.address,
            dims: &dims[..rank],
            strides: &strides[..rank - 1],
            box_dims: &box_dims[..rank],
            element_strides: &[1; 5][..rank],
            swizzle: if map.row_bytes() == 64 { Swizzle::B64 } else { Swizzle::B128 },
            fill_nan: false,
        };
        map.encode().map(|words| TensorMap { words }).map_err(|e| failed("encode a tensor map", e))
    }

    unsafe fn launch(
        &self,
        kernel: &SimKernel,
        grid: [u32; 3],
        params: &[u8],
        _: &SimStream,
    ) -> Result<(), Error> {
        let SimKernel { module, symbol, threads, smem_bytes, dependent } = kernel;
        let (dynamic_smem, smem_opt_in) = (*smem_bytes, *smem_bytes);
        let launch = Launch { dynamic_smem, smem_opt_in, ..Launch::new(grid, [*threads, 1, 1], params) };
        let mut gpu = lock(&self.gpu);
        let covers = gpu.options_mut().coverage;
        let run = if *dependent { Gpu::launch_dependent } else { Gpu::launch };
        let outcome = run(&mut gpu, module, symbol, &launch).map_err(|e| failed("simulated launch", e))?;
        drop(gpu);
        lock(&self.reports).extend(outcome.reports);
        if covers {
            let mut all = lock(&self.coverage);
            let (coverage, instructions) = all.entry(symbol.clone()).or_default();
            coverage.merge(&outcome.coverage);
            *instructions += outcome.instructions;
        }
        Ok(())
    }
}

impl Harness for SimDriver {
    type Buffer = SimBuffer;
    /// The time of the simulation on this CPU, not of a GPU.
    type Event = Instant;

    fn stream(&self) -> Result<SimStream, Error> {
        Ok(SimStream)
    }

    fn memory_in_use(&self) -> Result<Option<u64>, Error> {
        Ok(Some(self.in_use.load(Ordering::Relaxed)))
    }

    fn allocate(&self, bytes: usize) -> Result<SimBuffer, Error> {
        self.allocate_named("buffer", bytes)
    }

    fn allocate_named(&self, name: &str, bytes: usize) -> Result<SimBuffer, Error> {
        // The simulator guarantees no larger alignment than CUDA drivers promise.
        let address = lock(&self.gpu).alloc(name, bytes, 16).map_err(|e| failed("allocate", e))?;
        self.in_use.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(SimBuffer { gpu: Arc::clone(&self.gpu), address, bytes, in_use: Arc::clone(&self.in_use) })
    }

    fn address(&self, buffer: &SimBuffer) -> u64 {
        buffer.address
    }

    fn upload_at(&self, buffer: &mut SimBuffer, at: usize, data: &[u8]) -> Result<(), Error> {
        harness::fits(buffer.bytes, at, data.len())?;
        lock(&self.gpu).write(buffer.address + at as u64, data).map_err(|e| failed("upload", e))
    }

    fn download_at(&self, buffer: &SimBuffer, at: usize, data: &mut [u8]) -> Result<(), Error> {
        harness::fits(buffer.bytes, at, data.len())?;
        lock(&self.gpu).read_allow_uninit(buffer.address + at as u64, data).map_err(|e| failed("download", e))
    }

    fn fill(&self, buffer: &mut SimBuffer, byte: u8) -> Result<(), Error> {
        lock(&self.gpu).fill(buffer.address, byte, buffer.bytes).map_err(|e| failed("fill", e))
    }

    fn synchronize(&self, _: &SimStream) -> Result<(), Error> {
        self.findings()
    }

    fn record(&self, _: &SimStream) -> Result<Instant, Error> {
        Ok(Instant::now())
    }

    fn elapsed(&self, start: &Instant, end: &Instant) -> Result<Duration, Error> {
        self.findings()?;
        Ok(end.saturating_duration_since(*start))
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        // The allocator takes back the addresses that it gave out.
        let _ = lock(&self.gpu).free(self.address);
        self.in_use.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(call: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::driver(call, None, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_of_cards_agree() {
        for (name, capabilities) in Capabilities::PROFILES {
            let profile = Profile::by_name(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.compute_capability, capabilities.arch(), "{name}");
            assert_eq!(profile.multiprocessors, capabilities.sms, "{name}");
            assert_eq!(profile.shared_per_block_optin, capabilities.smem_per_block, "{name}");
            assert_eq!(profile.shared_per_multiprocessor, capabilities.smem_per_sm, "{name}");
            assert_eq!(profile.registers_per_multiprocessor, capabilities.registers_per_sm, "{name}");
        }
        assert_eq!(Profile::all().len(), Capabilities::PROFILES.len());
    }

    #[test]
    fn an_unknown_card_is_refused_with_the_known_ones() {
        let error = SimDriver::new("t4").map(|_| ()).expect_err("unknown").to_string();
        assert!(error.contains("t4") && error.contains("l4, a100, h100, h200, rtx4090"), "{error}");
    }
}
