//! The mutation score of a kernel of each kind, of a sample: every mutant is caught, or has a reason to
//! survive. All of all kernels: `ferroflash-mutants`.
use ferroflash_tests::mutation::{Fate, STACK, Sample, Subject, score, spot};
use ptx_sim::mutate::Operator;
use std::collections::BTreeMap;

/// Mutants of each operator that a test runs.
const SAMPLE: Sample = Sample { each: Some(2), seed: 1 };

#[track_caller]
fn check(symbol: &str) {
    check_sample(symbol, SAMPLE)
}

#[track_caller]
fn check_sample(symbol: &str, sample: Sample) {
    // The first test makes the workers of all.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    let subject =
        Subject::all().find(|subject| subject.kernel.symbol == symbol).expect("a kernel of the table");
    let score = score(&subject, sample, |_| (), || ());
    let unexplained: Vec<_> = score.unexplained().collect();
    assert!(unexplained.is_empty(), "{symbol}, {sample:?}: {unexplained:#?}");
    assert!(score.caught() * 2 > score.mutants && score.results > 0, "{score:#?}");
    assert!(score.checkers.values().sum::<usize>() > 0, "{score:#?}");
}

#[test]
fn overlapped() {
    check("fwd_f16_d64_full_128x32");
}

#[test]
fn sequential() {
    check("fwd_f16_d64_full_128x32_w8");
}

#[test]
fn keys_split_between_warps() {
    check("fwd_f16_d64_causal_32x128_k2");
}

#[test]
fn specialised() {
    check("fwd_f16_d64_full_64x32_specialised");
}

#[test]
fn merging() {
    check("combine_f16_d64");
}

#[test]
fn decoding() {
    check("decode_f16_d64_causal_8_tiles");
}

#[test]
fn merging_splits() {
    // Much of it finds out whose work is whose, where many mutants only deal it out otherwise.
    check_sample("decode_combine_f16_d64", Sample { each: Some(3), ..SAMPLE });
}

#[test]
fn on_pages() {
    check("paged_f16_d64_causal_128x64");
}

#[test]
fn appending() {
    check("append_f16_e4m3");
}

#[test]
fn merging_states() {
    check("merge_f16");
}

/// Which of Hopper's bodies a kernel is of.
fn kind(symbol: &str) -> &'static str {
    let wide = ["_d192_", "_d256_"].iter().any(|dim| symbol.contains(dim));
    match (symbol.starts_with("hopper_packed"), wide) {
        _ if symbol.ends_with("_split") => "split",
        _ if symbol.starts_with("hopper_paged") => "paged seam",
        (false, false) => "seam",
        (false, true) => "wide",
        (true, false) => "packed seam",
        (true, true) => "packed wide",
    }
}

/// Every line of Hopper's tables, of either type in turn: a mutant of each operator on its first edges. Which
/// of them do no harm takes all of its launches to say (`ferroflash-mutants --entry hopper`).
#[test]
fn every_hopper_kernel() {
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    let mut kinds: BTreeMap<&str, BTreeMap<Operator, usize>> = BTreeMap::new();
    let all = Subject::all().filter(|subject| subject.kernel.symbol.starts_with("hopper"));
    for (_, subject) in all.enumerate().filter(|(at, _)| at / 2 % 2 == at % 2) {
        // Over pages there are four kernels alone.
        let each = if subject.kernel.symbol.starts_with("hopper_paged") { 3 } else { 1 };
        let spot = spot(&subject, Sample { each: Some(each), seed: 1 });
        let fates = || spot.ends.iter().map(|(_, fate, _)| fate);
        let by_checkers = fates().filter(|fate| matches!(fate, Fate::Checker(_))).count();
        let by_results = fates().filter(|fate| **fate == Fate::Result).count();
        println!("{}: {by_checkers} and {by_results} of {}", spot.entry, spot.ends.len());
        assert!(spot.caught() * 2 > spot.ends.len() && by_checkers > 0 && by_results > 0, "{spot:#?}");
        let caught = kinds.entry(kind(spot.entry)).or_default();
        for (mutant, fate, reason) in &spot.ends {
            *caught.entry(mutant.operator).or_default() +=
                usize::from(*fate != Fate::Survived || reason.is_some());
        }
    }
    let missed = kinds.iter().flat_map(|(kind, caught)| {
        let missed = caught.iter().filter(|(_, caught)| **caught == 0);
        missed.map(move |(operator, _)| (kind, operator))
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty() && kinds.len() == 6, "{missed:?} of {:?}", kinds.keys());
}
