//! Runs every kernel in this build in the simulator, on its edge cases. The simulator checks every access,
//! barrier and copy.
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, entries};
use ferroflash_tests::subjects::check_edges;
use ferroflash_tests::{carried, check, is_carried, on_every_core, run, simulator_with};
use ptx_sim::Options;
use reference::{Case, Layout, OnDevice, Pages, Soak, Subject, edges, soak};

/// A simulator of the smallest card that can run `entry`.
fn simulator(entry: &AttnInfo) -> Attention<SimDriver> {
    simulator_with(entry, Options::default())
}

/// A kernel in f16 and the same kernel in bf16 have the same edge cases, and are neighbours in the table.
/// Each of them runs every second edge case, and the other kernel runs the other half. (`ferroflash verify`
/// runs every edge case on every kernel. Here, the other half would take four minutes of two cores.)
#[test]
fn every_kernel_on_its_edges() {
    let subjects: Vec<_> = carried().enumerate().collect();
    assert!(!subjects.is_empty());
    on_every_core(&subjects, |(number, subject)| {
        let step = if has_twin(*subject) { 2 } else { 1 };
        check_edges(*subject, |case| (case + *number as u64).is_multiple_of(step));
    });
}

/// The symbol of the same kernel in the other dtype.
fn twin(symbol: &str) -> String {
    let [from, to] = if symbol.contains("_f16_") { ["_f16_", "_bf16_"] } else { ["_bf16_", "_f16_"] };
    symbol.replacen(from, to, 1)
}

/// Whether this build has the same kernel in the other dtype, with the same edge cases. A few kernels in f16
/// have one case more.
fn has_twin(subject: &dyn Subject) -> bool {
    let symbol = subject.contract().symbol;
    let is_twin = |other: &&dyn Subject| {
        let name = other.contract().symbol;
        name != symbol && name == twin(symbol)
    };
    carried().find(is_twin).is_some_and(|other| other.edges(1).len() == subject.edges(1).len())
}

#[test]
fn twins_run_different_halves() {
    let subjects: Vec<_> = carried().collect();
    let place = |symbol: &str| subjects.iter().position(|subject| subject.contract().symbol == symbol);
    let twins: Vec<_> = subjects.iter().filter(|subject| has_twin(**subject)).collect();
    assert!(!twins.is_empty());
    for subject in twins {
        let symbol = subject.contract().symbol;
        let places = [symbol, &twin(symbol)].map(|symbol| place(symbol).expect("a kernel"));
        assert_eq!((places[0] + places[1]) % 2, 1, "{symbol}");
    }
}

/// The first entry with this mask in this build.
fn entry(mask: &str) -> &'static AttnInfo {
    let is_it = |entry: &&AttnInfo| entry.mask.name() == mask && is_carried(entry.contract.symbol);
    entries().find(is_it).expect("a build carries every mask")
}

#[test]
fn launches_agree_in_every_bit() {
    for mask in ["full", "causal", "local"] {
        let (attention, case) = (simulator(entry(mask)), soak(entry(mask), 3));
        let memory = case.memory();
        let device = OnDevice::new(&attention, &memory, Some(entry(mask).contract.symbol)).expect("loads");
        let first = device.run().expect("runs");
        let streams = [device];
        for every in [1, Soak::AT_THE_END] {
            assert_eq!(OnDevice::soak(&streams, &first, 2, every).expect("runs"), 0, "{mask}");
        }
    }
}

#[test]
fn local_entries_solve_every_mask() {
    let local = entry("local");
    let attention = simulator(local);
    for mask in ["full", "causal"] {
        for case in edges(entry(mask), 5) {
            let (pages, head_dim) = (Pages::Tensors(Layout::Bshd), local.head_dim as usize);
            let case = Case { pages, dtype: local.dtype, head_dim, head_dim_v: None, ..case };
            check(&attention, local, &case);
        }
    }
}

#[test]
fn a_wrong_result_is_noticed() {
    // The window of the kernel begins one key later than the window of the reference.
    let local = entry("local");
    let attention = simulator(local);
    let case = edges(local, 1).swap_remove(3);
    let memory = case.memory();
    let ferroflash::request::Mask::Window { left: Some(left), right } = case.mask else { panic!("a window") };
    let narrower = ferroflash::request::Mask::Window { left: Some(left - 1), right };
    let wrong = Case { mask: narrower, ..case.clone() }.memory();
    let outcome = run(&attention, local.contract.symbol, &wrong);
    let reference = reference::Reference::new(&memory.inputs().expect("valid"));
    let verdict = outcome.judge(&reference, case.dtype).expect("same shape");
    assert!(!verdict.passed());
}
