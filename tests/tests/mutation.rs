//! The mutation score of a kernel of each kind, of a sample: every mutant is caught, or has a reason to
//! survive. All of all kernels: `ferroflash-mutants`.
use ferroflash_tests::mutation::{STACK, Sample, Subject, score};

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
