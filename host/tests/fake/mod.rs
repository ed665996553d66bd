//! A driver in memory that runs nothing and records its calls.
use ferroflash::{driver::*, kernels::*, *};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One launch, as the driver received it.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub symbol: String,
    pub grid: [u32; 3],
    pub threads: u32,
    pub smem_bytes: u32,
    pub params: Vec<u8>,
    pub stream: u32,
}

/// A loaded kernel.
pub struct Kernel {
    symbol: String,
    threads: u32,
    smem_bytes: u32,
}

/// Records loads and launches.
pub struct FakeDriver {
    pub capabilities: Capabilities,
    pub loaded: Mutex<Vec<String>>,
    pub launches: Mutex<Vec<Launch>>,
    /// Whether the driver records launches.
    pub records: bool,
    /// The error that every launch returns, if launches must fail.
    pub failure: Option<Error>,
    /// The number of encoded tensor maps.
    pub maps: AtomicUsize,
}

impl FakeDriver {
    pub fn new(profile: &str) -> Self {
        let capabilities = Capabilities::profile(profile).expect("a known card").clone();
        FakeDriver {
            capabilities,
            loaded: Mutex::default(),
            launches: Mutex::default(),
            records: true,
            failure: None,
            maps: AtomicUsize::new(0),
        }
    }

    pub fn launches(&self) -> Vec<Launch> {
        self.launches.lock().expect("no panic").clone()
    }

    pub fn loaded(&self) -> Vec<String> {
        self.loaded.lock().expect("no panic").clone()
    }
}

impl Sealed for FakeDriver {}

impl Driver for FakeDriver {
    type Kernel = Kernel;
    type Stream = u32;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn load(&self, ptx: &str, contract: &Contract) -> Result<Kernel, Error> {
        let Contract { symbol, threads, smem_bytes, .. } = *contract;
        assert!(ptx.contains(symbol), "the PTX is the entry's");
        self.loaded.lock().expect("no panic").push(symbol.into());
        Ok(Kernel { symbol: symbol.into(), threads, smem_bytes })
    }

    /// A real driver encodes a tensor map in another form. These bytes contain the fields of the description:
    /// address, columns and rows of a box, strides, extents, kind and type.
    fn tensor_map(&self, of: &MapDescription) -> Result<spec::TensorMap, Error> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        let mut map = spec::TensorMap::EMPTY;
        map.words[..3].copy_from_slice(&[of.address, of.box_shape[0].into(), of.box_shape[1].into()]);
        map.words[3..6].copy_from_slice(&of.strides);
        map.words[6..10].copy_from_slice(&of.extents.map(u64::from));
        map.words[10..12].copy_from_slice(&[of.dtype as u64, of.kind as u64]);
        Ok(map)
    }

    unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        params: &[u8],
        stream: &u32,
    ) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if !self.records {
            return Ok(());
        }
        let Kernel { symbol, threads, smem_bytes } = kernel;
        let (symbol, params) = (symbol.clone(), params.to_vec());
        let launch =
            Launch { symbol, grid, threads: *threads, smem_bytes: *smem_bytes, params, stream: *stream };
        self.launches.lock().expect("no panic").push(launch);
        Ok(())
    }
}

impl Harness for FakeDriver {
    type Buffer = Vec<u8>;
    type Event = Duration;

    fn stream(&self) -> Result<u32, Error> {
        Ok(0)
    }

    fn allocate(&self, bytes: usize) -> Result<Vec<u8>, Error> {
        Ok(vec![0; bytes])
    }

    fn address(&self, buffer: &Vec<u8>) -> u64 {
        buffer.as_ptr() as u64
    }

    fn upload_at(&self, buffer: &mut Vec<u8>, at: usize, data: &[u8]) -> Result<(), Error> {
        buffer[at..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn download_at(&self, buffer: &Vec<u8>, at: usize, data: &mut [u8]) -> Result<(), Error> {
        data.copy_from_slice(&buffer[at..][..data.len()]);
        Ok(())
    }

    fn fill(&self, buffer: &mut Vec<u8>, byte: u8) -> Result<(), Error> {
        buffer.fill(byte);
        Ok(())
    }

    fn synchronize(&self, _: &u32) -> Result<(), Error> {
        Ok(())
    }

    fn record(&self, _: &u32) -> Result<Duration, Error> {
        Ok(Duration::from_millis(self.launches().len() as u64))
    }

    fn elapsed(&self, start: &Duration, end: &Duration) -> Result<Duration, Error> {
        Ok(*end - *start)
    }
}
