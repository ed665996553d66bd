//! Tests that append kernels stay inside the cache. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::spec::{APPENDS, AppendInfo};
use ferroflash::{Error, ptx};
use ferroflash_tests::subjects::{run, simulator};
use ptx_sim::Options;
use reference::Subject;

#[test]
fn a_slot_that_is_not_skipped_is_reported() {
    let copy: &AppendInfo = &APPENDS[0];
    let symbol = copy.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries it");
    const CLAMP: &str = "setp.ge.u64";
    assert_eq!(text.matches(CLAMP).count(), 1, "the one comparison of 64 bits");
    // In each variant, one half of the slot check is missing. The first variant accepts a slot past all rows,
    // the second accepts negative slots.
    for removed in ["setp.gt.u64", "setp.ge.s64"] {
        let attention = simulator(copy, Options::default());
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, &text.replace(CLAMP, removed)).expect("loads") };
        let wrong: Result<(), Error> = copy.edges(1).iter().try_for_each(|task| run(&attention, copy, task));
        let report = wrong.expect_err(removed).to_string();
        assert!(["keys", "values", "cache"].iter().any(|name| report.contains(name)), "{removed}: {report}");
    }
}
