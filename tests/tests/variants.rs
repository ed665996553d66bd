//! Masks, biases and sinks for which the planner finds a kernel, in tensors and on caches. They run in the
//! simulator with every checker, against the reference.
use ferroflash::driver::SimDriver;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use ferroflash_tests::lacks_kernel;
use reference::{Case, DecodeCase, Layout, OnDevice, Pages, Rule, Task, Values};

/// Runs the planner's kernel for a problem, whose symbol begins with these words. False where this build
/// carries a sample of the kernels, without this one.
#[track_caller]
fn check(card: &str, task: &Task, kernel: &str, reason: &str) -> bool {
    let attention = Attention::new(SimDriver::new(card).expect("a card"));
    let work = task.work();
    let judge = work.judge(Rule::Few).expect("valid");
    let written = match OnDevice::new(&attention, &*work, None).and_then(|mut device| device.run_all()) {
        Ok(written) => written,
        Err(error) if lacks_kernel(&error) => return false,
        Err(error) => {
            let reports: String = attention.driver().take_reports().iter().map(ToString::to_string).collect();
            panic!("{task}: {error}\n{reports}")
        }
    };
    for (round, written) in written.iter().enumerate() {
        assert!(written.entry.starts_with(kernel), "{task}: {}", written.entry);
        assert!(written.reason.contains(reason), "{task}: {}", written.reason);
        let failures = judge(round, written).failures;
        assert!(failures.is_empty(), "{task}: {failures:?}");
    }
    true
}

fn dense(problem: Problem) -> Task {
    Task::Forward(Case { problem, layout: Layout::Bhsd, seed: 5, values: Values::Normal })
}

const MERGED: &str = "a merge kernel adds them";

/// Sinks at head dims that have no kernel for them: of rows without a key, too.
#[test]
fn a_merge_kernel_adds_sinks() {
    let of = |dtype, head_dim| Problem::new(dtype, 2, 70, 4, head_dim).seqlen_k(50).heads_k(2).sinks(true);
    let cached = |queries, heads| DecodeCase {
        queries,
        heads,
        head_dim: 256,
        pages: Pages::Nhd(16),
        mask: Mask::Causal,
        sinks: true,
        ..DecodeCase::new([100, 0, 30])
    };
    let ran = [
        check("l4", &dense(of(DType::F16, 192)), "fwd_f16_d192_full", MERGED),
        check("a100", &dense(of(DType::Bf16, 256).mask(Mask::Causal)), "fwd_bf16_d256_causal", MERGED),
        check("l4", &Task::Cache(cached(70, [2, 1])), "paged_f16_d256_causal", MERGED),
        // Few enough rows for a decode kernel, which takes them.
        check("l4", &Task::Cache(cached(3, [2, 1])), "decode_f16_d256", "few rows"),
    ];
    assert!(ran.contains(&true), "this build carries no kernel of these");
}
