//! Attention on this machine's GPU through each CUDA driver. Without a GPU there is nothing to run, and the tests say so.
use ferroflash::*;
use std::time::{Duration, Instant};

const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();
const SHAPE: [usize; 4] = [2, 300, 4, 64];
const KV_SHAPE: [usize; 4] = [2, 300, 2, 64];

/// What is opened, or nothing where this machine has no GPU.
fn gpu<D>(opened: Result<D, Error>) -> Option<D> {
    opened.map_err(|e| eprintln!("nothing to run: {e}")).ok()
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Q, K, V, O and LSE on a device. Keys and values are all 1, so every output is 1 and every log-sum-exp `8 + ln(keys)`.
struct Problem<D: Driver> {
    buffers: [D::Buffer; 5],
}

impl<D: Driver> Problem<D> {
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

    fn forward(&self, driver: &D) -> Forward<'static> {
        let address = |n: usize| driver.address(&self.buffers[n]);
        let view = |n: usize, shape| TensorView::bshd(address(n), elements(shape) as u64, DType::F16, shape);
        Forward::new(view(0, SHAPE), view(1, KV_SHAPE), view(2, KV_SHAPE), view(3, SHAPE))
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

/// Launches on a stream of the driver's own, checks the result, and the time that a launch takes on the host.
fn attention_on<D: Driver>(driver: D) -> Result<(), Error> {
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

    let refused = driver.load("not PTX", LaunchContract::from(plan.entry)).map(|_| ()).expect_err("no PTX");
    assert!(matches!(refused, Error::Driver { code: Some(_), .. }), "{refused}");
    Ok(())
}

fn ok(code: libcuda::CUresult) {
    assert_eq!(libcuda::check(code), Ok(()));
}

/// Does what a program with its own context does before it embeds attention.
fn own_context() {
    let mut context = std::ptr::null_mut();
    // SAFETY: live handles; the context stays until the process ends.
    unsafe {
        ok(libcuda::cuInit(0));
        ok(libcuda::cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(libcuda::cuCtxSetCurrent(context));
    }
}

#[test]
fn the_raw_driver_computes_attention_in_the_callers_context() -> Result<(), Error> {
    if gpu(RawDriver::primary(0)).is_none() {
        return Ok(());
    }
    own_context();
    attention_on(RawDriver::current()?)
}

#[cfg(feature = "cust")]
#[test]
fn the_cust_driver_computes_attention() -> Result<(), Error> {
    gpu(CustDriver::new(0)).map_or(Ok(()), attention_on)
}

#[test]
fn a_thread_without_a_context_may_launch() -> Result<(), Error> {
    let Some(driver) = gpu(RawDriver::current()) else { return Ok(()) };
    std::thread::spawn(|| attention_on(driver)).join().expect("no panic")
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let Some(error) = RawDriver::primary(1000).err() else { panic!("1001 devices") };
    assert!(error.to_string().contains("1000") || error.to_string().contains("CUDA"), "{error}");
}

/// A foreign stream that captures a graph, which then runs again.
#[test]
fn a_launch_can_be_captured_in_a_graph() -> Result<(), Error> {
    if gpu(RawDriver::primary(0)).is_none() {
        return Ok(());
    }
    own_context();
    let attention = Attention::new(RawDriver::current()?);
    let driver = attention.driver();
    let (problem, own) = (Problem::new(driver)?, driver.stream()?);
    let foreign = RawStream::from_raw(own.as_raw());
    let f = problem.forward(driver);
    let plan = attention.plan(&f)?;
    attention.load(&plan)?;
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: live handles, each destroyed once; the buffers outlive the work.
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
