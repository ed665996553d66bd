//! The sample of the kernels (`cargo xtask test`) has at least one kernel with each trait in the table.
use ferroflash::spec::attention;
use reference::subjects;
use std::collections::BTreeSet;

/// The traits that some kernel has and no kernel of the sample has.
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

#[test]
fn every_family_and_each_of_its_masks_appears() {
    check(
        subjects(),
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
            // A cache with each kind of pages.
            let keys = format!("{:?}", entry.keys);
            let family =
                format!("{:?} {:?} {}", entry.isa, entry.queries, keys.split('(').next().unwrap_or(""));
            let of = |what: String| format!("{family}: {what}");
            vec![
                of(format!("{:?}", entry.dtype)),
                of(format!("head dim {}", entry.head_dim)),
                format!("{:?}, {:?}, {:?}", entry.isa, entry.schedule, entry.path),
                format!("{:?}, splits {}", entry.scheduler, entry.splits),
                format!("keys {:?}, {keys}", entry.kv_dtype),
            ]
        },
    );
}
