//! What a launch costs on the host, the driver's own time apart.
mod fake;

use fake::{FakeDriver, with_ptx};
use ferroflash::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counts allocations of the whole process: this file has one test.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_launch_allocates_nothing_and_takes_less_than_3_us() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver { records: false, ..FakeDriver::new("l4") });
    let forward = |address: u64| {
        let view = |n: u64| TensorView::bshd(address + (n << 30), 1 << 20, DType::F16, [2, 512, 8, 64]);
        Forward::new(view(0), view(1), view(2), view(3)).mask(Mask::Causal)
    };
    let planned = forward(1 << 40);
    let plan = attention.plan(&planned)?;
    attention.load(&plan)?;
    // The tensors that the plan was made with, and others, which are checked again.
    for (name, f) in [("the plan's tensors", planned), ("other tensors", forward(1 << 50))] {
        let mut best = Duration::MAX;
        for _ in 0..50 {
            let (before, start) = (ALLOCATIONS.load(Ordering::Relaxed), Instant::now());
            for _ in 0..200 {
                // SAFETY: nothing runs.
                unsafe { attention.launch(&plan, std::hint::black_box(&f), &0)? };
            }
            best = best.min(start.elapsed() / 200);
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "{name}: a launch allocates nothing");
        }
        println!("{name}: {best:?} a launch");
        assert!(attention.driver().launches().is_empty() && attention.driver().loaded().len() == 1);
        assert!(best < Duration::from_micros(3), "{name}: {best:?}");
    }
    Ok(())
}
