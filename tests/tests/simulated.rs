//! Every kernel in the simulator, every access, barrier and copy checked, on the problems that hit its edges.
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, ENTRIES, entries};
use ferroflash::{Attention, ptx};
use ferroflash_tests::{check, simulator_with};
use ptx_sim::Options;
use reference::{Case, Layout, Loaded, OnDevice, Soak, edges, soak};

/// The smallest card that holds `entry`.
fn simulator(entry: &AttnInfo) -> Attention<SimDriver> {
    simulator_with(entry, Options::default())
}

/// All edges of the entries of one head dim.
#[track_caller]
fn check_head_dim(head_dim: u32) {
    let entries: Vec<_> = entries().filter(|entry| entry.head_dim == head_dim).collect();
    assert!(!entries.is_empty(), "the table has head dim {head_dim}");
    for entry in entries {
        let attention = simulator(entry);
        for case in edges(entry, 1) {
            check(&attention, entry, &case);
        }
    }
}

#[test]
fn head_dim_32() {
    check_head_dim(32);
}

#[test]
fn head_dim_64() {
    check_head_dim(64);
}

#[test]
fn head_dim_96() {
    check_head_dim(96);
}

#[test]
fn head_dim_128() {
    check_head_dim(128);
}

#[test]
fn head_dim_192() {
    check_head_dim(192);
}

#[test]
fn head_dim_256() {
    check_head_dim(256);
}

#[test]
fn head_dim_512() {
    check_head_dim(512);
}

#[test]
fn every_head_dim_of_the_table_is_tested_here() {
    let tested = [32, 64, 96, 128, 192, 256, 512];
    assert!(entries().all(|entry| tested.contains(&entry.head_dim)));
    assert!(
        entries().all(|entry| ptx::is_embedded(entry.contract.symbol)),
        "this build carries every kernel"
    );
}

/// The first entry of a kind; the first of the table is full.
fn entry(mask: &str) -> &'static AttnInfo {
    ENTRIES.iter().find(|entry| entry.mask.name() == mask).expect("the table has every mask")
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
            let problem = case.problem.head_dim(local.head_dim as usize).dtype(local.dtype);
            check(&attention, local, &Case { problem, layout: Layout::Bshd, ..case });
        }
    }
}

#[test]
fn a_wrong_result_is_noticed() {
    // The kernel's window begins one key later than the reference's.
    let local = entry("local");
    let attention = simulator(local);
    let case = edges(local, 1)[3];
    let memory = case.memory();
    let ferroflash::request::Mask::Window { left: Some(left), right } = case.problem.mask else {
        panic!("a window")
    };
    let narrower = ferroflash::request::Mask::Window { left: Some(left - 1), right };
    let wrong = Case { problem: case.problem.mask(narrower), ..case }.memory();
    let outcome = Loaded::new(&attention, &wrong, Some(local.contract.symbol))
        .and_then(|loaded| loaded.run())
        .expect("runs");
    let reference = reference::Reference::new(&memory.inputs().expect("valid"));
    let verdict = outcome.judge(&reference, case.problem.dtype).expect("same shape");
    assert!(!verdict.passed());
}
