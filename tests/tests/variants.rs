//! Tests masks, biases and sinks for which the planner finds a kernel, on tensors and on caches. The problems
//! run in the simulator with every check, and the results are compared with the reference.
use ferroflash::driver::SimDriver;
use ferroflash::plan::Problem;
use ferroflash::request::{Mask, MaskBits, Prefix};
use ferroflash::{Attention, DType};
use ferroflash_tests::lacks_kernel;
use reference::{Case, Layout, OnDevice, Pages, Rule, Task};

/// Runs the kernel that the planner selects for a problem. The kernel's symbol must begin with `kernel`.
/// Returns false if this build only has a sample of the kernels, without this one.
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
    Task::Attention(Case::tensors(problem, Layout::Bhsd, 5))
}

const MERGED: &str = "a merge kernel adds them";

/// Tests sinks at head dims for which no prefill kernel takes sinks: a merge kernel adds them, or a decode
/// kernel takes the few rows. Some rows see no key.
#[test]
fn a_merge_kernel_adds_sinks() {
    let of = |dtype, head_dim| Problem::new(dtype, 2, 70, 4, head_dim).seqlen_k(50).heads_k(2).sinks(true);
    let cached = |queries, heads| Case {
        queries,
        heads,
        head_dim: 256,
        pages: Pages::Nhd(16),
        mask: Mask::Causal,
        sinks: true,
        ..Case::new([100, 0, 30])
    };
    let ran = [
        check("l4", &dense(of(DType::F16, 192)), "fwd_f16_d192_full", MERGED),
        check("a100", &dense(of(DType::Bf16, 256).mask(Mask::Causal)), "fwd_bf16_d256_causal", MERGED),
        check("l4", &Task::Attention(cached(70, [2, 1])), "paged_f16_d256_causal", MERGED),
        // There are few rows, so decode kernels take them.
        check("l4", &Task::Attention(cached(3, [2, 1])), "decode_f16_d256", "few rows"),
    ];
    assert!(ran.contains(&true), "this build carries no kernel of these");
}

/// A card, a dtype, a change of the problem's mask and scores, and the kernel that runs them.
type Variant = (&'static str, DType, fn(Problem) -> Problem, &'static str);

/// Sequences, queries, query heads, key heads, head dim and keys of the problems below.
const SIZES: [usize; 6] = [2, 70, 4, 2, 64, 100];

fn bits(queries: usize, columns: usize) -> Mask {
    Mask::Bits(MaskBits::contiguous(0, 0, [1, 4, queries, columns]))
}

#[rustfmt::skip]
const ON_TENSORS: &[Variant] = &[
    ("l4", DType::F16, |p| p.mask(Mask::Causal).sinks(true), "fwd_f16_d64_causal_sink"),
    ("a100", DType::Bf16, |p| p.softcap(20.0).sinks(true), "fwd_bf16_d64_local_sink"),
    ("l4", DType::F16, |p| p.bias(Some(DType::F16)), "fwd_f16_d64_full_bias_128"),
    ("l4", DType::Bf16, |p| p.mask(Mask::Causal).bias(Some(DType::Bf16)), "fwd_bf16_d64_causal_bias_128"),
    ("a100", DType::F16, |p| p.bias(Some(DType::F32)), "fwd_f16_d64_full_bias_f32"),
    ("l4", DType::F16, |p| p.mask(Mask::Prefix(Prefix::All(33))), "fwd_f16_d64_prefix"),
    ("l4", DType::F16, |p| p.mask(Mask::Chunked { chunk: 31 }), "fwd_f16_d64_chunked"),
    ("l4", DType::Bf16, |p| p.mask(bits(70, 100)), "fwd_bf16_d64_bits"),
    ("l4", DType::F16, |p| p.mask(bits(70, 100)).softcap(5.0), "fwd_f16_d64_bits"),
];

/// The planner's kernels compute the request's mask and scores, with its parameters.
#[test]
fn kernels_of_masks_and_scores_on_tensors() {
    let [batch, queries, heads_q, heads_k, head_dim, keys] = SIZES;
    let ran = ON_TENSORS.iter().map(|&(card, dtype, of, kernel)| {
        let problem = Problem::new(dtype, batch, queries, heads_q, head_dim);
        check(card, &dense(of(problem.seqlen_k(keys).heads_k(heads_k))), kernel, "this mask and these scores")
    });
    assert!(ran.fold(false, |any, ran| any | ran), "this build carries no kernel of these");
}

/// Queries of each sequence, mask, whether the request has sinks, the kernel, and words of the reason.
type OnCache = (usize, Mask, bool, &'static str, &'static str);

/// A case on a KV cache.
fn cached(queries: usize, mask: Mask, sinks: bool) -> Case {
    let [_, _, heads_q, heads_k, head_dim, _] = SIZES;
    let (heads, pages) = ([heads_q, heads_k], Pages::Nhd(16));
    Case { queries, heads, head_dim, pages, mask, sinks, ..Case::new([100, 0, 70]) }
}

/// These cases on KV caches, with trees of drafts in a decode kernel.
#[test]
fn kernels_of_masks_and_scores_on_caches() {
    let variants: [OnCache; 5] = [
        (70, Mask::Causal, true, "paged_f16_d64_causal_sink", "these scores"),
        (70, Mask::Prefix(Prefix::All(33)), false, "paged_f16_d64_prefix", "these scores"),
        (70, Mask::Chunked { chunk: 31 }, false, "paged_f16_d64_chunked", "these scores"),
        (70, bits(70, 61), false, "paged_f16_d64_bits", "these scores"),
        (8, bits(8, 8), false, "decode_f16_d64_bits", "rows"),
    ];
    let ran = variants.map(|(queries, mask, sinks, kernel, reason)| {
        check("l4", &Task::Attention(cached(queries, mask, sinks)), kernel, reason)
    });
    assert!(ran.contains(&true), "this build carries no kernel of these");
}

/// Trees of drafts with a softcap, on caches of 16 and of eight bits, in decode and in prefill, for sequences
/// of equal and of other numbers of queries.
#[test]
fn trees_with_softcap_on_every_cache() {
    let caches = [
        ("l4", None, "paged_f16_d64_bits", "decode_f16_d64_bits"),
        ("l4", Some(DType::E4m3), "paged_f16_e4m3_d128_bits", "decode_f16_e4m3_d128_bits"),
        ("a100", Some(DType::E4m3), "paged_f16_e4m3_d256_bits", "decode_f16_e4m3_d256_bits"),
        ("a100", Some(DType::Int8), "paged_f16_int8_d128_bits", "decode_f16_int8_d128_bits"),
    ];
    let ran = caches.into_iter().flat_map(|(card, kv_dtype, paged, decode)| {
        let capped = |queries, mask| Case { kv_dtype, softcap: Some(5.0), ..cached(queries, mask, false) };
        let varlen = capped(1, Mask::Bits(MaskBits::contiguous(0, 0, [3, 1, 40, 9])));
        let varlen = Case { varlen_queries: Some(vec![40, 3, 7]), ..varlen };
        [(capped(70, bits(70, 61)), paged), (varlen, paged), (capped(8, bits(8, 8)), decode)]
            .map(|(case, kernel)| check(card, &Task::Attention(case), kernel, ""))
    });
    assert!(ran.fold(false, |any, ran| any | ran), "this build carries no kernel of these");
}
