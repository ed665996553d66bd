//! Tests that a launch allocates nothing on the host. `cargo bench -p ferroflash` measures the host time of a
//! launch without the driver's time.
mod fake;
mod fake_ptx;

use fake::FakeDriver;
use fake_ptx::with_ptx;
use ferroflash::{plan::*, request::*, *};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread. The thread that runs the tests allocates at any time.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller makes the allocator's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller makes the allocator's promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_launch_allocates_nothing() -> Result<(), Error> {
    each_launch(&|_, launch| launch())
}

/// Measures a task with this name.
pub type Measure<'a> = dyn Fn(&str, &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> + 'a;

/// Measures planning and launching each kind of request.
pub fn each_launch(by: &Measure<'_>) -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver { records: false, ..FakeDriver::new("h200") });
    let forward = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 30), 1 << 20, DType::F16, [2, 512, 8, 64]);
        AttentionRequest::dense(view(0), view(1), view(2), view(3)).mask(Mask::Causal)
    };
    // Few queries on many keys run two kernels with the workspace between them, and one kernel for tensors
    // without tensor maps.
    let split = |address: u64| {
        let view = |n: u64, rows: usize| {
            TensorView::bshd(address + (n << 30), 1 << 28, DType::Bf16, [2, rows, 4, 128])
        };
        let f = AttentionRequest::dense(view(0, 20), view(1, 4096), view(2, 4096), view(3, 20));
        f.scratch(Scratch::workspace(address + (1 << 45), 1 << 29))
    };
    measure(by, &attention, "one kernel", forward, 1)?;
    measure(by, &attention, "two kernels", split, 4)?;
    // These requests run a kernel with tensor maps, and a kernel for tensors that cannot have tensor maps.
    let hopper = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 36), 1 << 30, DType::F16, [2, 2048, 16, 128]);
        AttentionRequest::dense(view(0), view(1), view(2), view(3)).mask(Mask::Causal)
    };
    measure(by, &attention, "tensor maps", hopper, 6)?;
    // Only builds that train have kernels of gradients.
    let backward = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 36), 1 << 30, DType::F16, [2, 2048, 16, 128]);
        let lse = LseView::contiguous(address + (9 << 36), 1 << 16, [2, 16, 2048]);
        let f = AttentionRequest::dense(view(0), view(1), view(2), view(3)).lse(lse);
        let b = AttentionBackward::new(f, view(4), view(5), view(6), view(7));
        b.scratch(Scratch::workspace(address + (10 << 36), 1 << 30))
    };
    let append = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 30), 1 << 20, DType::F16, [1, 64, 8, 128]);
        let pages = |n: u64| TensorView::bshd(address + (n << 30), 1 << 25, DType::F16, [100, 16, 8, 128]);
        Append::new(view(0), view(1), KvPages::new(pages(2), pages(3)), Slots::i64(address + (4 << 30), 64))
    };
    measure(by, &attention, "append", append, 7)?;
    let state = |n: u64| {
        let o = TensorView::bshd((1 << 45) + (n << 30), 1 << 20, DType::F16, [2, 64, 8, 64]);
        State::new(o, LseView::contiguous((1 << 46) + (n << 30), 1 << 10, [2, 8, 64]))
    };
    let states = [0, 1, 2].map(state);
    let merge = |address: u64| Merge::new(&states, TensorView { address, ..states[0].o });
    measure(by, &attention, "merge", merge, 8)?;
    let decode = |address: u64, splits| {
        let view = |n: u64| TensorView::bshd(address + (n << 32), 1 << 20, DType::F16, [4, 1, 8, 128]);
        let pages = |n: u64| TensorView::bshd(address + (n << 32), 1 << 25, DType::F16, [100, 16, 8, 128]);
        let (pages, table) = (KvPages::new(pages(2), pages(3)), Index::new(address + (4 << 32), 400));
        let cache = KvCache::paged(pages, table, 100, Index::new(address + (5 << 32), 4));
        AttentionRequest::cached(view(0), cache, view(1))
            .scratch(Scratch::Memory {
                workspace: Region { address: address + (6 << 32), bytes: 1 << 30 },
                counters: Some(Region { address: address + (7 << 32), bytes: 1 << 20 }),
            })
            .splits(splits)
    };
    measure(by, &attention, "decode", |address| decode(address, Splits::Auto), 10)?;
    measure(by, &attention, "decode, cut in three", |address| decode(address, Splits::Exactly(3)), 10)?;
    measure(by, &attention, "decode, in chunks", |address| decode(address, Splits::Keys(1024)), 10)?;
    let shared = |address: u64| {
        let rest = Index::new(address + (8 << 32), 4);
        decode(address, Splits::Auto).shared_prefixes(SharedPrefixes::one(50, rest).always())
    };
    measure(by, &attention, "shared prefixes", shared, 10)?;
    if cfg!(feature = "training") {
        measure(by, &attention, "gradients", backward, 15)?;
    }
    let on = attention.capabilities();
    for (name, problem) in
        [("tensor maps", hopper(1 << 40).problem()), ("decode", decode(1 << 40, Splits::Auto).problem())]
    {
        let mut select = || explain(std::hint::black_box(&problem), on, Scratch::Fastest).map(drop);
        by(&format!("{name}, selection"), &mut select)?;
    }
    Ok(())
}

/// Launches a request with tensors at two addresses. `loaded` is the number of kernels that are loaded after
/// the launch.
fn measure<R: Request>(
    by: &Measure<'_>,
    attention: &Attention<FakeDriver>,
    kernels: &str,
    request: impl Fn(u64) -> R,
    loaded: usize,
) -> Result<(), Error> {
    let planned = request(1 << 40);
    let plan = attention.plan(&planned)?;
    attention.load(&plan)?;
    assert_eq!(attention.driver().loaded().len(), loaded, "{kernels}");
    by(&format!("{kernels}, planning"), &mut || attention.plan(std::hint::black_box(&planned)).map(drop))?;
    let others = request(1 << 50);
    let mut bind = || {
        let before = ALLOCATIONS.get();
        std::hint::black_box(&plan.bind(std::hint::black_box(&others))?);
        assert_eq!(ALLOCATIONS.get(), before, "{kernels}: a re-bind allocates nothing");
        Ok(())
    };
    by(&format!("{kernels}, re-bind"), &mut bind)?;
    // The first tensors are the plan's own.
    for (tensors, f) in [("the plan's tensors", planned), ("other tensors", others)] {
        let name = format!("{kernels}, {tensors}");
        let mut launch = || {
            let before = ALLOCATIONS.get();
            // SAFETY: the fake driver runs nothing.
            unsafe { attention.launch(&plan, std::hint::black_box(&f), &0)? };
            assert_eq!(ALLOCATIONS.get(), before, "{name}: a launch allocates nothing");
            Ok(())
        };
        // The first launch with such tensors encodes the tensor maps.
        launch()?;
        by(&name, &mut launch)?;
        assert!(attention.driver().launches().is_empty() && attention.driver().loaded().len() == loaded);
    }
    Ok(())
}
