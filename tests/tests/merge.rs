//! Tests that a merge in place needs its barrier. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::ptx;
use ferroflash::spec::MERGES;
use ferroflash_tests::is_carried;
use ferroflash_tests::subjects::{run, simulator};
use ptx_sim::Options;
use reference::{Subject, Task};

#[test]
fn a_result_that_takes_its_place_too_early_is_a_race() {
    let kernel = MERGES.iter().find(|kernel| is_carried(kernel.contract.symbol)).expect("a merge is carried");
    let symbol = kernel.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries it");
    const BARRIER: &str = "bar.sync \t0;";
    assert_eq!(text.matches(BARRIER).count(), 1, "{BARRIER}");
    let is_in_place = |task: &Task| matches!(task, Task::Merge(case) if case.place_of == Some(0));
    let task = kernel.edges(1).into_iter().find(is_in_place).expect("a result in a state's place");
    run(&simulator(kernel, Options::default()), kernel, &task).expect("with its barrier");
    let attention = simulator(kernel, Options::default());
    // SAFETY: the simulator checks every access.
    unsafe { attention.load_from(symbol, &text.replace(BARRIER, "")).expect("loads") };
    let report = run(&attention, kernel, &task).expect_err("without").to_string();
    assert!(report.contains("race"), "{report}");
}
