//! Tests the mutation score of one kernel of each kind, on a sample of mutants: each mutant is caught, or has
//! a reason to survive. `cargo xtask mutate` runs every mutant of every kernel.
use ferroflash::kernels::{AttnInfo, MaskKind, Schedule, entry};
use ferroflash_tests::is_carried;
use ferroflash_tests::mutation::{Fate, STACK, Sample, Spot, Subject, score, spot};
use ptx_sim::mutate::Operator;
use std::collections::BTreeMap;

/// The sample: one mutant per operator.
const SAMPLE: Sample = Sample { each: Some(1), seed: 1 };

/// Runs the mutants of the first kernel of a kind in this build.
#[track_caller]
fn check(sample: Sample, is_of_kind: impl Fn(&Subject) -> bool) {
    // The first test creates the thread pool of all tests.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    let mut carried = Subject::all().filter(|subject| is_carried(subject.kernel.symbol));
    let subject = carried.find(is_of_kind).expect("a build carries one of each kind");
    let score = score(&subject, sample, |_| (), || ());
    let unexplained: Vec<_> = score.unexplained().collect();
    assert!(unexplained.is_empty(), "{}, {sample:?}: {unexplained:#?}", subject.kernel.symbol);
    // Many mutants of a kernel that merges splits only change which block has which splits.
    let part = if subject.merges() && subject.of.family() == "decode" { 3 } else { 2 };
    assert!(score.caught() * part > score.mutants && score.results > 0, "{score:#?}");
    assert!(score.checkers.values().sum::<usize>() > 0, "{score:#?}");
}

/// Like [`check`], for forward kernels of head dim 64.
#[track_caller]
fn check_forward(sample: Sample, is_of_kind: impl Fn(&AttnInfo) -> bool) {
    check(sample, |subject| {
        let entry = entry(subject.kernel.symbol);
        entry.is_ok_and(|entry| subject.of.family() == "forward" && entry.head_dim == 64 && is_of_kind(entry))
    });
}

#[test]
fn overlapped() {
    check_forward(SAMPLE, |entry| entry.schedule == Schedule::Overlapped);
}

#[test]
fn sequential() {
    check_forward(SAMPLE, |entry| {
        (entry.schedule, entry.tile_m, entry.tile_n) == (Schedule::Sequential, 128, 32)
    });
}

#[test]
fn keys_split_between_warps() {
    // With seeds 1 and 2, the mutants need two problems that are easily forgotten: infinite values with a row
    // that sees no key, and a row that sees a key behind a tile without keys.
    for seed in [1, 2] {
        let sample = Sample { seed, ..SAMPLE };
        check_forward(sample, |entry| entry.mask == MaskKind::Causal && entry.tile_n == 4 * entry.tile_m);
    }
}

#[test]
fn specialised() {
    check_forward(SAMPLE, |entry| entry.schedule == Schedule::Specialised);
}

#[test]
fn merging() {
    check(SAMPLE, |subject| subject.merges() && subject.of.family() == "split");
}

#[test]
fn decoding() {
    check(SAMPLE, |subject| !subject.merges() && subject.of.family() == "decode");
}

#[test]
fn merging_splits() {
    let sample = Sample { each: Some(2), ..SAMPLE };
    check(sample, |subject| subject.merges() && subject.of.family() == "decode");
}

#[test]
fn on_pages() {
    check(SAMPLE, |subject| subject.of.family() == "paged");
}

#[test]
fn appending() {
    check(SAMPLE, |subject| subject.of.family() == "append" && subject.kernel.symbol.contains("e4m3"));
}

/// Appends to rows that have their own scales.
#[test]
fn appending_with_scales() {
    for kernel in ["append_bf16_e4m3_scaled", "append_rotary_bf16_e4m3_scaled"] {
        check(SAMPLE, |subject| subject.kernel.symbol.starts_with(kernel));
    }
}

/// Portable kernels of latents of 16 bits, and of both kinds of eight bits, dense and with lists. They merge
/// splits, so that many mutants only change which block has which splits.
#[test]
fn latents() {
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    for kernel in LATENTS {
        let mut carried = Subject::all().filter(|subject| is_carried(subject.kernel.symbol));
        let subject = carried.find(|subject| subject.kernel.symbol.starts_with(kernel));
        assert_noticed(&spot(&subject.expect("a build carries one"), SAMPLE), 3);
    }
}

/// Portable kernels with products of eight bits, on tensors and on a cache.
#[test]
fn products_of_eight_bits() {
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    for kernel in EIGHT_BITS {
        let mut carried = Subject::all().filter(|subject| is_carried(subject.kernel.symbol));
        let subject = carried.find(|subject| subject.kernel.symbol.starts_with(kernel));
        assert_noticed(&spot(&subject.expect("a build carries one"), SAMPLE), 2);
    }
}

/// The beginnings of these kernels' symbols.
const EIGHT_BITS: [&str; 4] = [
    "int8_fp8_f16_d64_causal_128x64",
    "int8_fp8_f16_d64_local_128x64",
    "int8_f16_f16_d64_causal_128x64",
    "int8_fp8_paged_f16_int8_d64_causal",
];

/// The beginnings of these kernels' symbols, each of which one kernel has.
const LATENTS: [&str; 4] = [
    "mla_f16_e4m3_d576_causal_16x32",
    "mla_bf16_e4m3_scaled",
    "sparse_mla_f16_d576",
    "sparse_mla_bf16_e4m3_scaled",
];

#[test]
fn rotating() {
    check(SAMPLE, |subject| subject.kernel.symbol.starts_with("append_rotary"));
}

#[test]
fn merging_states() {
    check(SAMPLE, |subject| subject.of.family() == "merge");
}

/// Portable kernels of the backward pass, and those that run beside them.
#[test]
fn gradients() {
    for kernel in ["bwd_delta_f16_d64", "bwd_dkdv", "bwd_dq", "bwd_dbias"] {
        check(SAMPLE, |subject| subject.kernel.symbol.starts_with(kernel));
    }
}

#[test]
fn gradients_on_hopper() {
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    check(SAMPLE, |subject| subject.kernel.symbol.starts_with("bwd_convert_dq"));
    let mut carried = Subject::all().filter(|subject| is_carried(subject.kernel.symbol));
    let subject = carried.find(|subject| subject.kernel.symbol.starts_with("bwd_hopper"));
    assert_noticed(&spot(&subject.expect("a build carries one"), SAMPLE), 2);
}

/// Tests that checkers and results catch this part, or more, of a spot's mutants that do harm.
#[track_caller]
fn assert_noticed(spot: &Spot, part: usize) {
    let fates = || spot.ends.iter().map(|(_, fate, _)| fate);
    let by_checkers = fates().filter(|fate| matches!(fate, Fate::Checker(_))).count();
    let by_results = fates().filter(|fate| **fate == Fate::Result).count();
    println!("{}: {by_checkers} and {by_results} of {}", spot.entry, spot.ends.len());
    let harmless = spot.ends.iter().filter(|(_, _, reason)| reason.is_some()).count();
    let harmful = spot.ends.len() - harmless;
    assert!(spot.caught() * part > harmful && by_checkers > 0 && by_results > 0, "{spot:#?}");
}

/// The kind of a Hopper kernel, by its body.
fn kind(symbol: &str) -> &'static str {
    let wide = ["_d192_", "_d256_", "_d512_"].iter().any(|dim| symbol.contains(dim));
    match (symbol.starts_with("hopper_packed"), wide) {
        _ if symbol.ends_with("_split") => "split",
        _ if symbol.starts_with("hopper_paged") => "paged",
        (false, false) => "cross-tile overlap",
        (false, true) => "wide",
        (true, false) => "packed",
        (true, true) => "packed wide",
    }
}

/// A kernel's symbol without element types and sizes: the kernels of one such name have one body.
fn body(symbol: &str) -> (&'static str, String) {
    let is_size = |part: &&str| {
        let number = part.strip_prefix('d').unwrap_or(part);
        ["f16", "bf16"].contains(part) || number.starts_with(|first: char| first.is_ascii_digit())
    };
    let parts: Vec<_> = symbol.split('_').filter(|part| !is_size(part)).collect();
    (kind(symbol), parts.join("_"))
}

/// Tests one Hopper kernel of each body in this build, with one mutant per operator, on the first edge cases.
/// The sizes and element types take turns. Only all launches of a kernel can show which survivors do no harm
/// (`cargo xtask mutate --entry hopper`).
#[test]
fn every_body_of_hopper_kernels() {
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    let mut kinds: BTreeMap<&str, BTreeMap<Operator, usize>> = BTreeMap::new();
    let mut bodies: BTreeMap<_, Vec<Subject>> = BTreeMap::new();
    for subject in Subject::all() {
        let symbol = subject.kernel.symbol;
        if symbol.starts_with("hopper") && is_carried(symbol) {
            bodies.entry(body(symbol)).or_default().push(subject);
        }
    }
    for (turn, subjects) in bodies.values().enumerate() {
        let subject = &subjects[turn % subjects.len()];
        let spot = spot(subject, SAMPLE);
        assert_noticed(&spot, 2);
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
