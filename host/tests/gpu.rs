//! Runs attention on this machine's GPU through each CUDA driver: `cargo xtask test --gpu`. On a machine
//! without a GPU, these tests are reported as ignored.
#[cfg(feature = "training")]
mod gradients;

use ferroflash::driver::Harness;
use ferroflash::{driver::*, request::*, *};
use std::time::{Duration, Instant};

const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();
const SHAPE: [usize; 4] = [2, 300, 4, 64];
const KV_SHAPE: [usize; 4] = [2, 300, 2, 64];

/// Returns the calling thread's context, which these tests never destroy.
fn current() -> Result<RawDriver, Error> {
    // SAFETY: these tests never destroy the context.
    unsafe { RawDriver::current() }
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Q, K, V, O and LSE on a device. Keys and values are all 1, so every output is 1, and every log-sum-exp is
/// `8 + ln(keys)`.
struct Problem<D: Harness> {
    buffers: [D::Buffer; 5],
}

impl<D: Harness> Problem<D> {
    fn new(driver: &D) -> Result<Self, Error> {
        let filled = |bytes: &[u8]| {
            let mut buffer = driver.allocate(bytes.len())?;
            driver.upload(&mut buffer, bytes)?;
            Ok(buffer)
        };
        let (q, kv) = (ONE.repeat(elements(SHAPE)), ONE.repeat(elements(KV_SHAPE)));
        let (o, lse) = (vec![0xff; q.len()], vec![0xff; 2 * 4 * 300 * 4]);
        Ok(Problem { buffers: [filled(&q)?, filled(&kv)?, filled(&kv)?, filled(&o)?, filled(&lse)?] })
    }

    fn forward(&self, driver: &D) -> AttentionRequest<'static> {
        let address = |n: usize| driver.address(&self.buffers[n]);
        let view = |n: usize, shape| TensorView::bshd(address(n), elements(shape) as u64, DType::F16, shape);
        AttentionRequest::dense(view(0, SHAPE), view(1, KV_SHAPE), view(2, KV_SHAPE), view(3, SHAPE))
            .mask(Mask::Causal)
            .lse(LseView::contiguous(address(4), 2 * 4 * 300, [2, 4, 300]))
    }

    fn check(&self, driver: &D) -> Result<(), Error> {
        let mut o = vec![0; 2 * elements(SHAPE)];
        driver.download(&self.buffers[3], &mut o)?;
        assert!(o.chunks_exact(2).all(|x| x == ONE), "every output is 1");
        let mut lse = vec![0; 2 * 4 * 300 * 4];
        driver.download(&self.buffers[4], &mut lse)?;
        for (n, bytes) in lse.chunks_exact(4).enumerate() {
            let lse = f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
            let expected = 8.0 + ((n % 300 + 1) as f32).ln();
            assert!((lse - expected).abs() <= 1e-3, "row {}: {lse} should be {expected}", n % 300);
        }
        Ok(())
    }
}

/// Launches on a stream of the driver. Checks the result, and the host time of a launch.
fn attention_on<D: Harness>(driver: D) -> Result<(), Error> {
    let attention = Attention::new(driver);
    let driver = attention.driver();
    let (problem, stream) = (Problem::new(driver)?, driver.stream()?);
    let f = problem.forward(driver);
    let plan = attention.plan(&f)?;
    let launch = |stream: &D::Stream| {
        // SAFETY: the buffers outlive the stream's work, and nothing else uses them.
        unsafe { attention.launch(&plan, &f, stream) }
    };
    launch(&stream)?;
    driver.synchronize(&stream)?;
    problem.check(driver)?;

    let on_device = driver.time(&stream, &mut |stream| (0..100).try_for_each(|_| launch(stream)))? / 100;
    let mut on_host = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        (0..100).try_for_each(|_| launch(&stream))?;
        on_host = on_host.min(start.elapsed() / 100);
        driver.synchronize(&stream)?;
    }
    println!("{}: {on_device:?} on the device, {on_host:?} on the host a launch", driver.capabilities().name);
    problem.check(driver)?;

    let refused = driver.load("not PTX", plan.contract()).map(|_| ()).expect_err("no PTX");
    assert!(matches!(refused, Error::Driver { code: Some(_), .. }), "{refused}");
    Ok(())
}

fn ok(code: libcuda::CUresult) {
    assert_eq!(libcuda::check(code), Ok(()));
}

/// Makes a context, as a program does before it calls attention.
fn own_context() {
    let mut context = std::ptr::null_mut();
    // SAFETY: the handles live, and the context stays until the process ends.
    unsafe {
        ok(libcuda::cuInit(0));
        ok(libcuda::cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(libcuda::cuCtxSetCurrent(context));
    }
}

#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn the_raw_driver_computes_attention_in_the_callers_context() -> Result<(), Error> {
    RawDriver::primary(0)?;
    own_context();
    attention_on(current()?)
}

#[cfg(feature = "cust")]
#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn the_cust_driver_computes_attention() -> Result<(), Error> {
    attention_on(CustDriver::new(0)?)
}

#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn a_thread_without_a_context_may_launch() -> Result<(), Error> {
    let driver = current()?;
    std::thread::spawn(|| attention_on(driver)).join().expect("no panic")
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let Some(error) = RawDriver::primary(1000).err() else { panic!("1001 devices") };
    assert!(error.to_string().contains("1000") || error.to_string().contains("CUDA"), "{error}");
}

/// A stream of the caller captures a graph, which then runs again.
#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn a_launch_can_be_captured_in_a_graph() -> Result<(), Error> {
    RawDriver::primary(0)?;
    own_context();
    let attention = Attention::new(current()?);
    let driver = attention.driver();
    let (problem, own) = (Problem::new(driver)?, driver.stream()?);
    // SAFETY: the stream belongs to this test and outlives its use.
    let foreign = unsafe { RawStream::from_raw(own.as_raw()) };
    let f = problem.forward(driver);
    let plan = attention.plan(&f)?;
    attention.load(&plan)?;
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the handles live and each is destroyed once; the buffers outlive the work.
    unsafe {
        ok(libcuda::cuStreamBeginCapture_v2(own.as_raw(), libcuda::CAPTURE_THREAD_LOCAL));
        attention.launch(&plan, &f, &foreign)?;
        ok(libcuda::cuStreamEndCapture(own.as_raw(), &mut graph));
        ok(libcuda::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        for _ in 0..3 {
            ok(libcuda::cuGraphLaunch(exec, own.as_raw()));
        }
        driver.synchronize(&own)?;
        ok(libcuda::cuGraphExecDestroy(exec));
        ok(libcuda::cuGraphDestroy(graph));
    }
    problem.check(driver)
}

/// Q, K, V and O in one buffer, as parts of one packed tensor. The tensor's batches or rows may be far apart.
/// Distances are in elements.
#[derive(Clone, Copy)]
struct Packed {
    shape: [usize; 4],
    part: usize,
    batch: usize,
    row: usize,
}

impl Packed {
    /// Returns the number of elements of a row with all heads.
    fn width(self) -> usize {
        self.shape[2] * self.shape[3]
    }

    /// Returns the number of elements from a tensor's first element to the end of its last element.
    fn span(self) -> usize {
        (self.shape[0] - 1) * self.batch + (self.shape[1] - 1) * self.row + self.width()
    }

    fn bytes(self) -> usize {
        2 * (3 * self.part + self.span())
    }

    /// Returns the address of each row of a tensor.
    fn rows(self, base: u64, tensor: usize) -> impl Iterator<Item = u64> {
        let [batches, rows, ..] = self.shape;
        let row = move |n: usize| tensor * self.part + n / rows * self.batch + n % rows * self.row;
        (0..batches * rows).map(move |n| base + 2 * row(n) as u64)
    }

    fn forward(self, base: u64) -> AttentionRequest<'static> {
        let strides = [self.batch, self.row, self.shape[3], 1].map(|stride| stride as i64);
        let [q, k, v, o] = [0, 1, 2, 3].map(|tensor| {
            let address = base + 2 * (tensor * self.part) as u64;
            TensorView::new(address, self.span() as u64, DType::F16, self.shape, strides)
        });
        AttentionRequest::dense(q, k, v, o).mask(Mask::Causal)
    }

    /// Computes O, row by row, for inputs that do not depend on the layout.
    fn attention(self, attention: &Attention<RawDriver>) -> Result<Vec<u8>, Error> {
        let driver = attention.driver();
        let mut buffer = driver.allocate(self.bytes())?;
        // The buffer holds NaN, so that a read at a wrong address is visible.
        driver.fill(&mut buffer, 0xff)?;
        let (base, mut row) = (driver.address(&buffer), vec![0; 2 * self.width()]);
        let mut state = 1u64;
        for address in (0..3).flat_map(|tensor| self.rows(base, tensor)) {
            for element in row.chunks_exact_mut(2) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // The numbers are between 1/8 and 1/2, with either sign.
                element.copy_from_slice(&(0x3000 | (state >> 40) as u16 & 0x87ff).to_le_bytes());
            }
            // SAFETY: the address is a row of the buffer, in the current context.
            unsafe { ok(libcuda::cuMemcpyHtoD_v2(address, row.as_ptr().cast(), row.len())) };
        }
        // Copies from pageable memory may return before they have landed. SAFETY: the call has no arguments.
        unsafe { ok(libcuda::cuCtxSynchronize()) };
        let (f, stream) = (self.forward(base), driver.stream()?);
        let plan = attention.plan(&f)?;
        // SAFETY: the buffer outlives the stream's work, and nothing else uses it.
        unsafe { attention.launch(&plan, &f, &stream)? };
        driver.synchronize(&stream)?;
        let mut o = vec![];
        for address in self.rows(base, 3) {
            // SAFETY: the address is a row of the buffer, in the current context.
            unsafe { ok(libcuda::cuMemcpyDtoH_v2(row.as_mut_ptr().cast(), address, row.len())) };
            o.extend_from_slice(&row);
        }
        Ok(o)
    }
}

/// Batches are more than 4 GiB apart, and the distances of rows sum to more than 4 GiB, so offsets exceed 32
/// bits.
#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn offsets_go_beyond_4_gib() -> Result<(), Error> {
    RawDriver::primary(0)?;
    own_context();
    let attention = Attention::new(current()?);
    let (batches, rows) = ([2, 70, 2, 64], [1, 70, 2, 64]);
    let cases = [
        Packed { shape: batches, part: 70 * 128, batch: (1 << 31) + (1 << 16), row: 128 },
        Packed { shape: rows, part: 128, batch: 70 * (32 << 20), row: 32 << 20 },
    ];
    for far in cases {
        let needed = far.bytes() as u64;
        assert!(needed > 1 << 32, "64-bit offsets are used");
        let driver = attention.driver();
        let free = driver.capabilities().memory_bytes - driver.memory_in_use()?.unwrap_or(0);
        assert!(free >= needed + (1 << 28), "{needed} bytes of device memory are needed, {free} are free");
        let near = Packed { part: far.shape[0] * 70 * 128, batch: 70 * 128, row: 128, ..far };
        let expected = near.attention(&attention)?;
        assert!(expected.chunks_exact(2).all(|x| x != [0xff, 0xff]), "every output is written");
        assert!(far.attention(&attention)? == expected, "{:?}: equal results at every address", far.shape);
    }
    Ok(())
}
