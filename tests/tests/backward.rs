//! Backward passes in the simulator: bits under other schedules, and problems that are larger than the edges.
//! `simulated.rs` runs the edges of each kernel, and `hopper_backward.rs` has the schedules of Hopper's.
#[path = "backward/integers.rs"]
mod integers;

use ferroflash::DType;
use ferroflash::request::Mask;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash_tests::simulator_with;
use ferroflash_tests::subjects::run;
use ptx_sim::{Completion, Options};
use reference::{BackwardCase, Case, Layout, OnDevice, Pages, Subject, Task};

/// Returns whether a kernel computes dK and dV in f16, with this mask.
fn is_f16(e: &AttnInfo, mask: MaskKind) -> bool {
    e.pass != Pass::Dq && (e.dtype, e.mask) == (DType::F16, mask)
}

/// No portable kernel adds to memory, so the schedule of warps and copies changes no bit.
#[test]
fn every_schedule_gives_equal_bits() {
    for kernel in GRADIENTS.iter().filter(|e| is_f16(e, MaskKind::Causal) && e.pass == Pass::DkDv) {
        let work = kernel.soak(1).work();
        let launch = |seed: u64, completion| {
            let attention = simulator_with(kernel, Options { seed, completion, ..Options::default() });
            OnDevice::new(&attention, &*work, None).and_then(|device| device.run()).expect("runs")
        };
        let first = launch(0, Completion::Late);
        assert_eq!(first.entry, kernel.contract.symbol);
        for (seed, completion) in [(1, Completion::Eager), (2, Completion::Random), (3, Completion::Random)] {
            assert_eq!(launch(seed, completion), first, "{}", kernel.contract.symbol);
        }
    }
}

/// Between its two edges, a long window has tiles that see whole tiles.
#[test]
fn long_windows_have_an_interior() {
    let window = Mask::Window { left: Some(300), right: Some(0) };
    let case = Case { queries: 500, heads: [1, 1], mask: window, ..Case::new([500]) };
    let pages = Pages::Tensors(Layout::Bshd);
    let task = Task::Backward(BackwardCase { forward: Case { pages, ..case }, d_lse: true });
    let kernels = GRADIENTS.iter().filter(|e| is_f16(e, MaskKind::Local) && e.head_dim == 64);
    let ran =
        kernels.map(|kernel| run(&simulator_with(kernel, Options::default()), kernel, &task).expect("runs"));
    assert_eq!(ran.count(), 2, "a portable kernel, and one of Hopper's");
}
