//! Tests that the sample that represents all kernels (`cargo xtask test`) has every trait of the table.
use ferroflash::plan::{Problem, supports};
use ferroflash::request::Mask;
use ferroflash::spec::attention;
use ferroflash::{Capabilities, DType};
use reference::subjects;
use std::collections::BTreeSet;

/// Checks that no kernel of the table has a trait that no kernel of the sample has.
#[track_caller]
fn check<K: Copy>(
    kernels: impl Iterator<Item = K>,
    symbol: impl Fn(K) -> &'static str,
    traits: impl Fn(K) -> Vec<String>,
) {
    let sample: BTreeSet<_> = sample::sample().iter().map(|kernel| kernel.symbol).collect();
    let kernels: Vec<_> = kernels.collect();
    let sampled = kernels.iter().filter(|kernel| sample.contains(symbol(**kernel)));
    let seen: BTreeSet<_> = sampled.flat_map(|kernel| traits(*kernel)).collect();
    let all: BTreeSet<_> = kernels.iter().flat_map(|kernel| traits(*kernel)).collect();
    let missing: Vec<_> = all.difference(&seen).collect();
    assert!(missing.is_empty(), "no kernel of the sample has {missing:?}");
}

/// The subjects without those of the backward pass, of which the sample has none.
fn inference() -> impl Iterator<Item = &'static dyn reference::Subject> {
    subjects().filter(|subject| spec::feature_of(subject.contract().symbol) != Some("training"))
}

#[test]
fn every_family_and_each_of_its_masks_appears() {
    check(
        inference(),
        |subject| subject.contract().symbol,
        |subject| {
            let mask = subject.mask().map_or("none", |mask| mask.name());
            vec![format!("{}, mask {mask}", subject.family())]
        },
    );
}

#[test]
fn every_order_of_work_type_and_head_dim_appears() {
    check(
        attention(),
        |entry| entry.contract.symbol,
        |entry| {
            let keys = format!("{:?}", entry.keys);
            let decodes = entry.decodes();
            vec![
                format!("{}: {:?}", entry.family(), entry.dtype),
                format!("{:?}, decodes {decodes}: head dim {}", entry.isa, entry.head_dim),
                format!("{:?}, {:?}, {:?}", entry.isa, entry.schedule, entry.path),
                format!("{:?}, splits {}", entry.scheduler, entry.splits),
                format!("keys {:?}, {keys}", entry.kv_dtype),
            ]
        },
    );
}

/// Tests have small problems in f16 with head dim 64, so they must run on a build that carries only the
/// sample.
#[test]
fn the_planner_selects_kernels_of_the_sample_for_small_problems() {
    let sample: BTreeSet<_> = sample::sample().iter().map(|kernel| kernel.symbol).collect();
    let window = Mask::Window { left: Some(9), right: Some(0) };
    for card in ["l4", "a100", "h200"].map(|name| Capabilities::profile(name).expect("a known card")) {
        for [batch, heads, queries] in
            [[1, 1, 1], [1, 2, 16], [2, 2, 40], [1, 4, 64], [2, 2, 100], [1, 2, 130]]
        {
            for mask in [Mask::Full, Mask::Causal, window] {
                let problem = Problem::new(DType::F16, batch, queries, heads, 64).mask(mask);
                let symbol = supports(&problem, card).expect("valid").symbol;
                assert!(sample.contains(symbol), "{}: {problem}: {symbol}", card.name);
            }
        }
    }
}
