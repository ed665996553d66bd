//! Tests which calls CUDA drivers make to contexts, modules, graphs and memory, and which objects they leave.
//! The driver library is a fake: it runs nothing, has two devices, and records misuse.
#![cfg(target_os = "linux")]
#[cfg(feature = "cudarc")]
mod cudarc_front;
mod fake_cuda;
mod fake_ptx;

use fake_cuda::{FakeCuda, in_fake_cuda};
use ferroflash::{driver::*, kernels::*, request::*, *};
use spec::{DecodeCombine, Dependent, Entry, F16};

const CONTRACT: Contract = ATTENTION[0].contract;

fn ptx() -> String {
    format!("// {}", CONTRACT.symbol)
}

fn forward(address: u64) -> AttentionRequest<'static> {
    let view = |n: u64| TensorView::bshd(address + (n << 30), 2 * 300 * 8 * 64, DType::F16, [2, 300, 8, 64]);
    AttentionRequest::dense(view(0), view(1), view(2), view(3)).mask(Mask::Causal)
}

/// Calls every function of a driver while another device's context is current. Each object is dropped on a
/// thread without a context.
fn everything<D: Harness>(cuda: &FakeCuda, driver: D) -> Result<(), Error>
where
    D::Buffer: Send,
    D::Stream: Send,
    D::Event: Send,
{
    let foreign = cuda.enter_device(1);
    let elsewhere = |what: Box<dyn FnOnce() + Send + '_>| {
        std::thread::scope(|scope| scope.spawn(what).join().expect("no panic"));
        assert_eq!(cuda.current(), foreign, "the caller's context does not change");
    };
    let kernel = driver.load(&ptx(), &CONTRACT)?;
    let (stream, mut buffer) = (driver.stream()?, driver.allocate(1000)?);
    assert!(driver.memory_in_use()?.is_some());
    driver.fill(&mut buffer, 7)?;
    driver.upload(&mut buffer, &[1, 2, 3])?;
    let mut bytes = [0; 5];
    driver.download(&buffer, &mut bytes)?;
    assert_eq!(bytes, [1, 2, 3, 7, 7]);
    let start = driver.record(&stream)?;
    // SAFETY: the fake driver runs nothing.
    unsafe { driver.launch(&kernel, [1, 2, 3], &[0; 16], &stream)? };
    let end = driver.record(&stream)?;
    driver.synchronize(&stream)?;
    driver.elapsed(&start, &end)?;
    assert_eq!(cuda.current(), foreign, "the caller's context does not change");
    elsewhere(Box::new(move || drop(kernel)));
    elsewhere(Box::new(move || drop((start, end))));
    elsewhere(Box::new(move || drop(stream)));
    elsewhere(Box::new(move || drop(buffer)));

    // A module that does not load leaves no object.
    for refused in ["broken", "another kernel", &format!("{}\0", ptx())] {
        assert!(driver.load(refused, &CONTRACT).is_err(), "{refused:?}");
    }
    let expected = |fault: &String| fault.ends_with("a broken image") || fault.contains("no function");
    let faults = cuda.faults();
    assert!(faults.len() >= 2 && faults.iter().all(expected), "{faults:?}");
    cuda.fail("cuFuncSetAttribute");
    assert!(driver.load(&ptx(), &CONTRACT).is_err(), "no opt-in");
    assert_eq!(cuda.current(), foreign, "the caller's context does not change");
    elsewhere(Box::new(move || drop(driver)));
    cuda.leave();
    assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    Ok(())
}

#[test]
fn the_raw_driver_keeps_to_its_context() {
    in_fake_cuda("the_raw_driver_keeps_to_its_context", |cuda| {
        everything(cuda, RawDriver::primary(0).expect("a device")).expect("no error");
    });
}

#[cfg(feature = "cust")]
#[test]
fn the_cust_driver_keeps_to_its_context() {
    in_fake_cuda("the_cust_driver_keeps_to_its_context", |cuda| {
        everything(cuda, CustDriver::new(0).expect("a device")).expect("no error");
    });
}

#[cfg(feature = "cust")]
#[test]
fn a_context_of_custs_is_shared_and_changes_nothing() {
    in_fake_cuda("a_context_of_custs_is_shared_and_changes_nothing", |cuda| {
        cust::init(cust::CudaFlags::empty()).expect("a driver");
        let theirs = cust::device::Device::get_device(0).and_then(cust::context::Context::new);
        let theirs = theirs.expect("a device");
        let foreign = cuda.enter_device(1);
        let driver = CustDriver::with_context(&theirs).expect("usable");
        assert_eq!(cuda.current(), foreign, "the caller's context does not change");
        drop(theirs);
        let buffer = driver.allocate(64).expect("room");
        // cust's types do not know their context.
        let stream = driver.stream().expect("room");
        let event = driver.record(&stream).expect("recorded");
        drop(driver);
        drop(buffer);
        assert!(cuda.left().contains(&"context of device 0".into()), "{:?}", cuda.left());
        drop((stream, event));
        assert_eq!(cuda.left(), ["context of device 1"]);
        cuda.leave();
        assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    });
}

/// Checks that an upload waits: a copy from pageable memory may return before it has landed, and FerroFlash's
/// streams do not wait for it.
fn uploads_wait<D: Harness>(cuda: &FakeCuda, driver: &D) -> Result<(), Error> {
    let mut buffer = driver.allocate(64)?;
    for (name, uploads) in [("cuMemcpyHtoD_v2", true), ("cuMemsetD8_v2", false)] {
        cuda.calls();
        if uploads {
            driver.upload(&mut buffer, &[1; 64])?
        } else {
            driver.fill(&mut buffer, 1)?
        }
        let calls = cuda.calls();
        let copied = calls.iter().position(|call| call == name).expect(name);
        assert!(calls[copied..].iter().any(|call| call == "cuStreamSynchronize"), "{calls:?}");
    }
    Ok(())
}

/// The crate refuses a driver that cannot compile the kernels, before it plans anything.
#[test]
fn drivers_that_are_too_old() {
    in_fake_cuda("drivers_that_are_too_old", |cuda| {
        for (version, says) in [(11_040, "CUDA 11.4"), (11_070, "CUDA 11.7"), (10_020, "CUDA 10.2")] {
            cuda.set_version(version);
            let error = RawDriver::primary(0).map(|_| ()).expect_err(says).to_string();
            assert!(error.contains(says) && error.contains("since CUDA 11.8; update"), "{error}");
        }
        for (version, tensor_maps) in [(11_080, false), (12_020, false), (12_030, true)] {
            cuda.set_version(version);
            let driver = RawDriver::primary(0).expect("new enough");
            assert_eq!(driver.capabilities().tensor_maps, tensor_maps, "{version}");
        }
        cuda.faults();
    });
}

/// This test contains the first program of docs/using.md, in full.
#[test]
#[cfg(feature = "cust")]
fn the_first_program_of_the_manual() {
    use cust::{memory::DeviceBuffer, prelude::*};
    in_fake_cuda("the_first_program_of_the_manual", |cuda| {
        let run = || -> Result<(), Box<dyn std::error::Error>> {
            let context = cust::quick_init()?;
            let attention = Attention::new(CustDriver::with_context(&context)?);
            let stream = attention.driver().adopt(Stream::new(StreamFlags::NON_BLOCKING, None)?);
            let (shape, kv_shape) = ([1, 1000, 8, 64], [1, 1000, 2, 64]);
            let tensor = |rows: usize| DeviceBuffer::from_slice(&vec![0u16; rows * 64]);
            let (q, k, v, o) = (tensor(8000)?, tensor(2000)?, tensor(2000)?, tensor(8000)?);
            let view = |buffer: &DeviceBuffer<u16>, shape| {
                TensorView::bshd(buffer.as_device_ptr().as_raw(), buffer.len() as u64, DType::F16, shape)
            };
            let forward = AttentionRequest::dense(
                view(&q, shape),
                view(&k, kv_shape),
                view(&v, kv_shape),
                view(&o, shape),
            )
            .mask(Mask::Causal);
            let plan = attention.plan(&forward)?;
            // SAFETY: the fake driver runs nothing.
            unsafe { attention.launch(&plan, &forward, &stream)? };
            stream.synchronize()?;
            assert_eq!(o.as_host_vec()?.len(), 8000 * 64);
            Ok(())
        };
        run().expect("it runs to its end");
        assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    });
}

#[test]
fn an_upload_has_landed_when_it_returns() {
    in_fake_cuda("an_upload_has_landed_when_it_returns", |cuda| {
        uploads_wait(cuda, &RawDriver::primary(0).expect("a device")).expect("no error");
        #[cfg(feature = "cust")]
        uploads_wait(cuda, &CustDriver::new(0).expect("a device")).expect("no error");
    });
}

#[test]
fn a_capture_ends_however_its_work_ends() {
    in_fake_cuda("a_capture_ends_however_its_work_ends", |cuda| {
        let attention = Attention::new(RawDriver::primary(0).expect("a device"));
        let driver = attention.driver();
        let stream = driver.stream().expect("a stream");
        let f = forward(1 << 40);
        let plan = attention.plan(&f).expect("valid");
        attention.load(&plan).expect("PTX");
        // SAFETY: the fake driver runs nothing.
        let launch = || unsafe { attention.launch(&plan, &f, &stream) };
        let loaded = cuda.left();
        let nothing_more =
            |what: &str| assert_eq!((cuda.left(), cuda.faults()), (loaded.clone(), vec![]), "{what}");

        let failure = Error::driver("work", None, "failed");
        let failing = driver.capture(&stream, || launch().and(Err(failure.clone())));
        assert_eq!(failing.map(|_| ()), Err(failure));
        nothing_more("work that fails");

        let panicking =
            std::panic::AssertUnwindSafe(|| driver.capture(&stream, || panic!("at work")).map(|_| ()));
        assert!(std::panic::catch_unwind(panicking).is_err());
        nothing_more("work that panics");

        for function in ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags"] {
            cuda.fail(function);
            let error = driver.capture(&stream, launch).map(|_| ()).expect_err("out of memory").to_string();
            assert!(error.starts_with(function.trim_end_matches("_v2")), "{error}");
            nothing_more(function);
        }

        let graph = driver.capture(&stream, launch).expect("captured");
        // Another thread may replay and drop a graph.
        std::thread::scope(|scope| {
            let replay = move || {
                // SAFETY: the fake driver runs nothing.
                unsafe { driver.replay(&graph, &stream) }
            };
            scope.spawn(replay).join().expect("no panic").expect("replayed");
        });
        drop(attention);
        assert_eq!((cuda.faults(), cuda.left()), (vec![], vec![]));
    });
}

/// Checks that a launch in a graph is captured once, and that the graph is enqueued any number of times.
fn captured_once<D: Harness>(cuda: &FakeCuda, driver: D) {
    let attention = Attention::new(driver);
    let stream = attention.driver().stream().expect("a stream");
    let f = forward(1 << 40);
    let plan = attention.plan(&f).expect("valid");
    attention.load(&plan).expect("PTX");
    let (_, loaded) = (cuda.calls(), cuda.left());
    // SAFETY: the fake driver runs nothing.
    let launch = &mut || unsafe { attention.launch(&plan, &f, &stream) };
    let twice = &mut |replay: &mut Enqueue<'_>| replay().and_then(|()| replay());
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.driver().with_graph(&stream, launch, twice) }.expect("replayed");
    let calls = cuda.calls();
    let count = |name: &str| calls.iter().filter(|call| *call == name).count();
    assert_eq!(
        ["cuStreamBeginCapture_v2", "cuLaunchKernel", "cuGraphLaunch"].map(count),
        [1, 1, 2],
        "{calls:?}"
    );
    assert_eq!((cuda.faults(), cuda.left()), (vec![], loaded));
}

/// Checks that a kernel begins early if its contract says that it waits by itself, and only then.
fn dependent_kernels_begin_early<D: Harness>(cuda: &FakeCuda, driver: D) -> Result<(), Error> {
    let stream = driver.stream()?;
    let in_order = <DecodeCombine<F16, 32> as Entry>::CONTRACT;
    let early = <Dependent<DecodeCombine<F16, 32>> as Entry>::CONTRACT;
    assert_eq!([in_order, early].map(|contract| contract.is_dependent()), [false, true]);
    for contract in [in_order, early] {
        let kernel = driver.load(&format!("// {}", contract.symbol), &contract)?;
        // SAFETY: the fake driver runs nothing.
        unsafe { driver.launch(&kernel, [7, 1, 1], &[0; 16], &stream)? };
    }
    let calls = cuda.calls();
    let last = |symbol: &str| {
        calls.iter().rfind(|call| call.starts_with(&format!("launch {symbol} 7 1 1 on "))).expect("launched")
    };
    let begin_early = [in_order, early].map(|contract| last(contract.symbol).ends_with(" early"));
    assert_eq!(begin_early, [false, true], "{calls:?}");
    Ok(())
}

#[test]
fn what_waits_by_itself_begins_early() {
    in_fake_cuda("what_waits_by_itself_begins_early", |cuda| {
        dependent_kernels_begin_early(cuda, RawDriver::primary(0).expect("a device")).expect("launched");
        #[cfg(feature = "cust")]
        dependent_kernels_begin_early(cuda, CustDriver::new(0).expect("a device")).expect("launched");
    });
}

#[test]
fn a_graph_is_captured_once() {
    in_fake_cuda("a_graph_is_captured_once", |cuda| {
        captured_once(cuda, RawDriver::primary(0).expect("a device"));
        #[cfg(feature = "cust")]
        captured_once(cuda, CustDriver::new(0).expect("a device"));
    });
}

/// Checks that tensor maps are encoded at the first launch, for its tensors, and are reused afterwards.
fn maps_are_the_drivers<D: Harness>(cuda: &FakeCuda, driver: D) -> Result<(), Error> {
    let attention = Attention::new(driver);
    let forward = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 36), 1 << 30, DType::F16, [2, 2048, 16, 96]);
        AttentionRequest::dense(view(0), view(1), view(2), view(3))
    };
    let (f, stream) = (forward(1 << 44), attention.driver().stream()?);
    let plan = attention.plan(&f)?;
    assert_eq!(plan.contract().symbol, "hopper_f16_d96_full_128x128");
    let maps = |f: &AttentionRequest<'_>| {
        cuda.calls();
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &stream)? };
        let calls = cuda.calls();
        assert!(calls.iter().any(|call| call.starts_with("launch hopper_f16_d96_full_128x128 132 1 1")));
        Ok::<_, Error>(calls.into_iter().filter(|call| call.starts_with("map ")).collect::<Vec<_>>())
    };
    // Rows of boxes have 64 bytes and a 64-byte swizzle. Elements beyond the tensor are 0.
    let map = |address: u64| format!("map 6 at {address:#x}, 0 2 3 0");
    assert_eq!(maps(&f)?, [0, 1, 2, 3].map(|n| map((1 << 44) + (n << 36))));
    assert_eq!(maps(&f)?, [""; 0]);
    assert_eq!(maps(&forward(1 << 45))?.len(), 4);
    cuda.fail("cuTensorMapEncodeTiled");
    let refused = maps(&forward(1 << 46)).expect_err("the driver's refusal").to_string();
    assert!(refused.contains("cuTensorMapEncodeTiled"), "{refused}");
    assert_eq!(cuda.faults(), [""; 0]);
    Ok(())
}

#[test]
fn tensor_maps_are_the_drivers() {
    in_fake_cuda("tensor_maps_are_the_drivers", |cuda| {
        maps_are_the_drivers(cuda, RawDriver::primary(0).expect("a device")).expect("no error");
        #[cfg(feature = "cust")]
        maps_are_the_drivers(cuda, CustDriver::new(0).expect("a device")).expect("no error");
    });
}
