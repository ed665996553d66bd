//! Tests the arguments that the driver receives for a launch.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::parts::forward_params;
use ferroflash::{driver::*, kernels::*, request::*, *};
use spec::FwdParams;

fn forward(address: u64) -> AttentionRequest<'static> {
    let view = |n: u64, heads: usize| {
        TensorView::bshd(address + (n << 30), 2 * 300 * heads as u64 * 64, DType::Bf16, [2, 300, heads, 64])
    };
    AttentionRequest::dense(view(0, 8), view(1, 2), view(2, 2), view(3, 8))
        .mask(Mask::Causal)
        .lse(LseView::contiguous(address + (4 << 30), 2 * 8 * 300, [2, 8, 300]))
}

/// Reads the parameters from the driver's arguments.
fn params(bytes: &[u8]) -> FwdParams {
    assert_eq!(bytes.len(), size_of::<FwdParams>());
    // SAFETY: the bytes have the size of the parameters, and every byte that a host writes has a value.
    unsafe { bytes.as_ptr().cast::<FwdParams>().read_unaligned() }
}

#[test]
fn a_launch_is_what_was_planned() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let f = forward(1 << 40);
    let plan = attention.plan(&f)?;
    assert!(attention.driver().loaded().is_empty(), "planning touches no device");
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&plan, &f, &7)? };

    let launches = attention.driver().launches();
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!(launch.symbol, plan.contract().symbol);
    assert_eq!((launch.grid, launch.stream), (plan.grid(), 7));
    assert_eq!((launch.threads, launch.smem_bytes), (plan.contract().threads, plan.contract().smem_bytes));
    let sent = params(&launch.params);
    assert_eq!(sent, forward_params(&plan.bind(&f)?));
    assert_eq!((sent.q.base, sent.q.rows, sent.q.chunks), (1 << 40, 300, 8));
    assert_eq!(
        (sent.k.batch_bytes, sent.k.row_bytes, sent.k.head_bytes),
        (300 * 2 * 64 * 2, 2 * 64 * 2, 64 * 2)
    );
    assert_eq!((sent.lse.base, sent.lse.head_bytes), ((1 << 40) + (4 << 30), 300 * 4));
    assert_eq!(sent.order.heads_per_kv.get(), 4);
    Ok(())
}

#[test]
fn a_split_launch_is_two_kernels_on_one_workspace() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("b200"));
    let few = |address: u64, room: u64| {
        let view = |n: u64, rows: usize| {
            TensorView::bshd(address + (n << 30), 1 << 28, DType::Bf16, [2, rows, 4, 128])
        };
        let f = AttentionRequest::dense(view(0, 20), view(1, 4096), view(2, 4096), view(3, 20));
        f.scratch(Scratch::workspace(room, 1 << 29))
    };
    let f = few(1 << 40, 1 << 45);
    let plan = attention.plan(&f)?;
    assert_eq!(plan.contract().symbol, "fwd_bf16_d128_full_128x64_split");
    attention.load(&plan)?;
    assert_eq!(attention.driver().loaded(), ["fwd_bf16_d128_full_128x64_split", "combine_bf16_d128"]);
    let launch = |f: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &7) }
    };
    launch(&f)?;
    launch(&few(1 << 41, 1 << 46))?;
    let small = Region { address: 1 << 45, bytes: plan.scratch_bytes().workspace - 1 };
    let message = launch(&f.scratch(Scratch::Memory { workspace: small, counters: None }))
        .expect_err("too small")
        .to_string();
    assert!(
        message.contains("workspace.bytes") && message.contains(&plan.scratch_bytes().workspace.to_string()),
        "{message}"
    );

    let slices = 32;
    let rows = slices * 2 * 4 * 20;
    assert_eq!(plan.scratch_bytes().workspace, rows * 129 * 4);
    let launches = attention.driver().launches();
    assert_eq!(launches.len(), 4, "nothing else was launched");
    for (pair, [tensors, room]) in launches.chunks(2).zip([[1u64 << 40, 1 << 45], [1 << 41, 1 << 46]]) {
        let [forward, combine] = pair else { panic!("{pair:?}") };
        assert_eq!((forward.grid, forward.stream, combine.stream), ([8 * slices as u32, 1, 1], 7, 7));
        assert_eq!(
            (combine.grid, combine.threads, combine.smem_bytes),
            ([2 * 4 * 20 * 16 / 128, 1, 1], 128, 0)
        );
        let word =
            |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..][..8].try_into().expect("8 bytes"));
        let partials = |bytes: &[u8], at| [word(bytes, at), word(bytes, at + 8)];
        let expected = [room, room + rows * 512];
        assert_eq!(forward.params.len(), size_of::<spec::SplitParams>());
        assert_eq!(partials(&forward.params, std::mem::offset_of!(spec::SplitParams, partials)), expected);
        assert_eq!(partials(&combine.params, std::mem::offset_of!(spec::CombineParams, partials)), expected);
        assert_eq!(word(&combine.params, std::mem::offset_of!(spec::CombineParams, o)), tensors + (3 << 30));
    }
    Ok(())
}

#[test]
fn a_plan_serves_other_tensors_of_its_problem_and_no_other_problem() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let f = forward(1 << 40);
    let plan = attention.plan(&f)?;
    let launch = |f: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &0) }
    };
    launch(&forward(1 << 50))?;
    assert_eq!(params(&attention.driver().launches()[0].params).o.base, (1 << 50) + (3 << 30));
    let mut without = f;
    without.lse = None;
    launch(&without)?;
    assert_eq!(params(&attention.driver().launches()[1].params).lse.base, 0);

    let mut overlapping = f;
    overlapping.o.address = f.q.address;
    let refused = [
        ("another mask", f.mask(Mask::Full), "mask: full; the plan is for causal"),
        ("another scale", f.scale(2.0), "scale: 2; the plan is for 0.125"),
        ("misaligned", forward((1 << 50) + 8), "multiple of 16"),
        ("overlapping", overlapping, "must not overlap"),
    ];
    for (name, f, words) in refused {
        let message = launch(&f).expect_err(name).to_string();
        assert!(message.contains(words), "{name}: {message}");
    }
    assert_eq!(attention.driver().launches().len(), 2, "nothing else was launched");
    Ok(())
}

#[test]
fn a_kernel_loads_once_however_many_threads_launch_it() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("a100"));
    let (causal, full) = (forward(1 << 40), forward(1 << 40).mask(Mask::Full));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for f in [causal, full] {
                    let plan = attention.plan(&f).expect("valid");
                    // SAFETY: the fake driver runs nothing.
                    unsafe { attention.launch(&plan, &f, &0) }.expect("launched");
                }
            });
        }
    });
    assert_eq!((attention.driver().launches().len(), attention.driver().loaded().len()), (16, 2));
    attention.load(&attention.plan(&causal)?)?;
    assert_eq!(attention.driver().loaded().len(), 2);
    Ok(())
}

#[test]
fn the_drivers_failure_comes_back() -> Result<(), Error> {
    with_ptx();
    let failure = Error::driver("cuLaunchKernel", Some(700), "illegal address");
    let attention = Attention::new(FakeDriver { failure: Some(failure.clone()), ..FakeDriver::new("l4") });
    let f = forward(1 << 40);
    // SAFETY: the fake driver runs nothing.
    assert_eq!(unsafe { attention.launch(&attention.plan(&f)?, &f, &0) }, Err(failure));
    Ok(())
}

#[test]
fn a_kernel_picked_by_type_launches_by_its_type() -> Result<(), Error> {
    with_ptx();
    type Small = spec::FwdOverlap<spec::Bf16, spec::Causal, 4, 1, 4, 4, 4>;
    let driver = FakeDriver::new("l4");
    let kernel = Prepared::<Small, _>::new(&driver)?;
    let f = forward(1 << 40).config("fwd_bf16_d64_causal_64x64");
    let plan = plan(&f, driver.capabilities())?;
    // SAFETY: the fake driver runs nothing.
    unsafe { kernel.launch(&driver, &forward_params(&plan.bind(&f)?), &3)? };
    let launch = &driver.launches()[0];
    assert_eq!((launch.symbol.as_str(), launch.grid), (plan.contract().symbol, plan.grid()));
    assert_eq!(
        (launch.threads, launch.smem_bytes, launch.stream),
        (plan.contract().threads, plan.contract().smem_bytes, 3)
    );
    Ok(())
}

#[test]
fn work_is_timed_between_two_marks() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let f = forward(1 << 40);
    let plan = attention.plan(&f)?;
    let elapsed = attention.driver().time(&0, &mut |stream| {
        // SAFETY: the fake driver runs nothing.
        (0..3).try_for_each(|_| unsafe { attention.launch(&plan, &f, stream) })
    })?;
    assert_eq!(elapsed.as_millis(), 3);
    Ok(())
}

#[test]
fn without_a_driver_the_error_says_so() {
    let Err(error) = RawDriver::primary(0) else { return };
    let message = error.to_string();
    assert!(matches!(error, Error::Driver { .. }) && message.contains("CUDA"), "{message}");
}
