//! Tests that append kernels stay inside the cache and inside the table of angles. `simulated.rs` runs each
//! kernel on its edge cases.
use ferroflash::spec::{APPENDS, AppendInfo};
use ferroflash::{Error, ptx};
use ferroflash_tests::subjects::{run, simulator};
use ptx_sim::Options;
use reference::{OnDevice, Rule, Subject};

/// Returns the first kernel of this build whose symbol begins so, and has this word. A build may carry a
/// sample of the kernels.
fn carried(beginning: &str, word: &str) -> &'static AppendInfo {
    let is_one = |kernel: &&AppendInfo| {
        let symbol = kernel.contract.symbol;
        symbol.starts_with(beginning) && symbol.contains(word) && ptx::source(symbol).is_ok()
    };
    APPENDS.iter().find(is_one).expect("a build carries one")
}

#[test]
fn a_slot_that_is_not_skipped_is_reported() {
    for kernel in [carried("append_copy", ""), carried("append_bf16", "e4m3_scaled")] {
        slots_are_needed(kernel);
    }
}

fn slots_are_needed(kernel: &'static AppendInfo) {
    let symbol = kernel.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries it");
    const CLAMP: &str = "setp.ge.u64";
    assert_eq!(text.matches(CLAMP).count(), 1, "{symbol}: the one comparison of 64 bits");
    // In each variant, one half of the slot check is missing. The first variant accepts a slot past all rows,
    // the second accepts negative slots.
    for removed in ["setp.gt.u64", "setp.ge.s64"] {
        let attention = simulator(kernel, Options::default());
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, &text.replace(CLAMP, removed)).expect("loads") };
        let wrong: Result<(), Error> =
            kernel.edges(1).iter().try_for_each(|task| run(&attention, kernel, task));
        let report = wrong.expect_err(removed).to_string();
        let is_named = ["keys", "values", "cache", "rows"].iter().any(|name| report.contains(name));
        assert!(is_named, "{symbol}, {removed}: {report}");
    }
}

/// Returns the module without its clamps of one kind: each line with `clamp` becomes `line(words)`, from the
/// operands.
fn without(text: &str, clamp: &str, line: fn(&[&str]) -> String) -> String {
    let mut count = 0;
    let lines = text.lines().map(|old| match old.trim().strip_prefix(clamp) {
        // LLVM compares a pair of words with 2^32 to test a flag in the upper word.
        Some(operands) if !operands.contains("4294967296") => {
            count += 1;
            line(&operands.trim_end_matches(';').split(',').map(str::trim).collect::<Vec<_>>())
        }
        _ => old.to_owned(),
    });
    let all = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(count, 2, "one of keys and one of queries: {clamp}");
    all
}

#[test]
fn a_position_that_is_not_clamped_is_noticed() {
    for word in ["", "e4m3_scaled"] {
        positions_are_clamped(carried("append_rotary", word));
    }
}

fn positions_are_clamped(rotary: &'static AppendInfo) {
    let symbol = rotary.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries it");
    let noticed = |text: &str| {
        let attention = simulator(rotary, Options::default());
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, text).expect("loads") };
        rotary.edges(1).iter().any(|task| {
            let work = task.work();
            let judge = work.judge(Rule::Tolerance).expect("valid");
            let mut device = OnDevice::new(&attention, &*work, Some(symbol)).expect("planned");
            // A report of the simulator is an error of the launch.
            let Ok(all) = device.run_all() else { return true };
            all.iter().enumerate().any(|(round, written)| !judge(round, written).failures.is_empty())
        })
    };
    assert!(!noticed(&text));
    // A position behind the table reads behind the table. A negative position reads the last row.
    let always = |of: &[&str]| format!("setp.ge.u64 {}, {}, 0;", of[0], of[1]);
    assert!(noticed(&without(&text, "setp.lt.u64", always)));
    assert!(noticed(&without(&text, "max.s64", |of| format!("mov.u64 {}, {};", of[0], of[1]))));
}
