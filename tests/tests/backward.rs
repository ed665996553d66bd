//! Backward passes in the simulator: bits under other schedules, and problems that are larger than the edges.
//! `simulated.rs` runs the edges of each kernel, and `hopper_backward.rs` has the schedules of Hopper's.
#[path = "backward/far.rs"]
mod far;
#[path = "backward/integers.rs"]
mod integers;

use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash_tests::subjects::run;
use ferroflash_tests::{on_every_core, simulator_with};
use ptx_sim::{Completion, Options};
use reference::{Case, Layout, OnDevice, Pages, Subject, Task, is_modified};

/// Returns whether a kernel computes dK and dV in f16, with this mask.
fn is_f16(e: &AttnInfo, mask: MaskKind) -> bool {
    !e.pass.is_beside() && (e.dtype, e.mask) == (DType::F16, mask)
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
    let pages = Pages::Tensors(Layout::Bshd);
    let forward = Case { queries: 500, heads: [1, 1], mask: window, pages, ..Case::new([500]) };
    let kernels = GRADIENTS
        .iter()
        .filter(|e| is_f16(e, MaskKind::Local) && [64, 128].contains(&e.head_dim) && !e.is_varlen());
    let ran = kernels.map(|kernel| {
        let softcap = is_modified(kernel).then_some(20.0);
        let forward = Case { head_dim: kernel.head_dim as usize, softcap, ..forward.clone() };
        let task = Task::Attention(forward.backward(true));
        run(&simulator_with(kernel, Options::default()), kernel, &task).expect("runs")
    });
    assert_eq!(ran.count(), 5, "portable kernels, and Hopper's");
}

/// Kernels with their own columns of values: the kernel's own columns, fewer of both, fewer of one, one
/// chunk, more of values.
#[test]
fn every_pair_of_columns() {
    let kernels = GRADIENTS.iter().filter(|e| e.has_own_values() && is_f16(e, e.mask) && !e.is_varlen());
    let tasks = kernels.flat_map(|kernel| {
        let [k, v] = kernel.columns().map(|columns| columns as usize);
        // Hopper's kernels of fewer columns take fewer columns than these.
        let least = if kernel.has_maps() && k != v { v + 8 } else { 8 };
        let half = (k / 2 + 16).max(least);
        let all = [[k, v], [k - 16, v - 8], [k, v / 2 + 8], [k - 24, 8], [least, v], [half, v]];
        let mask = match kernel.mask {
            MaskKind::Full => Mask::Full,
            MaskKind::Causal => Mask::Causal,
            _ => Mask::Window { left: Some(20), right: Some(3) },
        };
        all.into_iter().enumerate().map(move |(turn, [head_dim, head_dim_v])| {
            let queries = kernel.tile_n as usize + 5 * turn;
            let problem = Problem::new(kernel.dtype, 1, queries, 2, head_dim).head_dim_v(head_dim_v);
            let problem = problem.seqlen_k(kernel.tile_m as usize + 9).heads_k(1 + turn % 2).mask(mask);
            let layout = [Layout::Bshd, Layout::Bhsd, Layout::Packed][turn % 3];
            let softcap = is_modified(kernel).then_some(20.0);
            let forward = Case { softcap, ..Case::tensors(problem, layout, turn as u64) };
            (kernel, Task::Attention(forward.backward(turn % 2 == 0)))
        })
    });
    let tasks: Vec<_> = tasks.collect();
    assert!(tasks.iter().any(|(kernel, _)| kernel.head_dim != kernel.head_dim_v));
    on_every_core(&tasks, |(kernel, task)| {
        let ran = run(&simulator_with(kernel, Options::default()), *kernel, task);
        ran.unwrap_or_else(|error| panic!("{}: {task}: {error}", kernel.contract.symbol));
    });
}

/// Blocks that share the query heads of a key head round their shares. If the naive gradients had one
/// rounding of all heads, the problem of seed 10 would exceed the tolerance.
#[test]
fn shares_of_heads_stay_within_the_tolerance() {
    let kernel = GRADIENTS.iter().find(|e| is_f16(e, MaskKind::Causal) && e.head_dim == 64 && !e.has_maps());
    let kernel = kernel.expect("in the table");
    on_every_core(&[([4, 2], 10), ([8, 1], 3)], |(heads, seed)| {
        let pages = Pages::Tensors(Layout::Bshd);
        let lengths = Case { queries: 256, heads: *heads, head_dim: 64, ..Case::new([256]) };
        let forward = Case { mask: Mask::Causal, pages, seed: *seed, ..lengths };
        let task = Task::Attention(forward.backward(false));
        run(&simulator_with(kernel, Options::default()), kernel, &task).expect("runs");
    });
}
