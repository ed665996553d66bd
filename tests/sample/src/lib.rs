//! The sample of kernels: `cargo xtask test` compiles and tests the sample, `cargo xtask test --all` tests
//! every kernel of the table.
//!
//! A kernel's symbol contains its family, types, head dim and mask, and words that distinguish its tiling or
//! schedule. [`sample`] starts with the kernels that the planner selects for the small problems of tests. The
//! function then adds kernels of the table until every such word of every family has appeared. With each
//! kernel, it adds the other kernels of the kernel's launches. *`tests/tests/sample.rs` compares the sample
//! with the table's fields: family, schedule, mask, dtype, head dim, layout.*
use spec::{AttnInfo, Contract, DType, LINEAGE, MERGES, MaskKind, Schedule, ScoreKinds};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// The words of symbols that name a kernel's family.
const FAMILIES: [&str; 18] = [
    "fwd", "hopper", "decode", "mla", "sparse", "stats", "append", "merge", "combine", "packed", "paged",
    "split", "mixed", "few", "many", "fp8", "quantise", "lay",
];

/// The kernels that represent the table, in the order of the table.
pub fn sample() -> Vec<Contract> {
    let all: Vec<_> = table().map(|kernel| (kernel, all_traits(kernel))).collect();
    let (mut taken, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut take = |kernel: Contract, seen: &mut BTreeSet<_>| {
        taken.extend(with_others(kernel).map(|kernel| kernel.symbol));
        seen.extend(all_traits(kernel));
    };
    planned().for_each(|kernel| take(kernel, &mut seen));
    let small: BTreeSet<_> = of_small_problems().map(|entry| entry.contract.symbol).collect();
    loop {
        let adds = |n: usize| all[n].1.difference(&seen).count();
        // If several kernels add the same number of traits, the loop prefers a kernel of small problems, then
        // the first one in the table, because this kernel has the simplest mask.
        let is_small = |n: usize| small.contains(&all[n].0.symbol);
        match (0..all.len()).max_by_key(|&n| (adds(n), is_small(n), Reverse(n))) {
            Some(best) if adds(best) > 0 => take(all[best].0, &mut seen),
            _ => break,
        }
    }
    all.into_iter().map(|(kernel, _)| kernel).filter(|kernel| taken.contains(kernel.symbol)).collect()
}

/// The table without the backward kernels. Their problems need three kernels, which take long to compile, and
/// `tests/tests/backward.rs` runs all of them.
fn table() -> impl Iterator<Item = Contract> {
    spec::kernels().filter(|kernel| spec::feature_of(kernel.symbol) != Some("training"))
}

/// More kernels that tests run: on tensors of e4m3, on caches whose values have another head dim than keys,
/// on shared prefixes, on int8 caches, of requests whose bits do not depend on other sequences, and on
/// latents of 16 and of eight bits.
const OF_TESTS: [&str; 28] = [
    "fp8_bf16_d64_full_128x128",
    "lay_e4m3_d64",
    "lay_e4m3_d128",
    "fwd_f16_d64_causal_128x32",
    "fwd_f16_d64_causal_128x32_packed",
    "stats_f16_d64_local_128x64_packed",
    "stats_f16_d64_local_128x64_paged",
    "fp8_f16_d128_full_128x128",
    "fp8_f16_d128_causal_128x128",
    "fp8_f16_d64_causal_128x128",
    "fp8_packed_f16_d64_causal_128x128",
    "paged_f16_d192x128_causal_64x48",
    "paged_f16_d192x128_local_64x32",
    "paged_f16_d256_local_64x32",
    "hopper_paged_f16_d128_causal_128x128",
    "decode_f16_d128_causal_16_tiles",
    "decode_f16_d128_causal_16_tiles_w4",
    "append_f16_int8",
    "append_bf16_e4m3_scaled",
    "append_rotary_bf16_e4m3_scaled",
    "mla_f16_d576_causal_16x32",
    "mla_f16_e4m3_d576_causal_16x32",
    "mla_bf16_e4m3_d576_causal_16x32_native",
    "sparse_mla_f16_d576_full_16x32",
    "sparse_mla_bf16_d576_full_16x32",
    "sparse_mla_f16_e4m3_d576_full_16x32",
    "hopper_mla_bf16_d576_causal_64x64",
    "hopper_sparse_mla_bf16_d576_full_64x64",
];

/// The attention kernels of small problems in tests, in f16 and with head dim 64.
fn of_small_problems() -> impl Iterator<Item = &'static AttnInfo> {
    let is_asked = |entry: &&AttnInfo| {
        (entry.dtype, entry.head_dim) == (DType::F16, 64) && !spec::is_lineage(entry.contract.symbol)
    };
    spec::attention().filter(is_asked)
}

/// The kernels that the planner selects for small problems, with and without sinks, under the masks full,
/// causal and window. These are the kernel with the fewest rows of each family and mask, and every decode
/// kernel, because the number of heads in a group selects among decode kernels. Then come the first merge
/// kernel, and the first configuration of the lineage with each of its masks, because the tests of the
/// program run configurations.
fn planned() -> impl Iterator<Item = Contract> {
    let (decode, others): (Vec<&AttnInfo>, Vec<&AttnInfo>) =
        of_small_problems().partition(|entry| entry.schedule == Schedule::Transposed);
    let is_plain = |entry: &&AttnInfo| {
        let is_interval = [MaskKind::Full, MaskKind::Causal, MaskKind::Local].contains(&entry.mask);
        is_interval && [ScoreKinds::NONE, ScoreKinds::SINK].contains(&entry.scores)
    };
    let mut least: HashMap<_, &AttnInfo> = HashMap::new();
    for entry in others.into_iter().filter(is_plain) {
        let of = (entry.kv_dtype, entry.contract.target);
        let kind = (entry.family(), entry.splits, entry.mask, entry.scores, of);
        let least = least.entry(kind).or_insert(entry);
        if entry.tile_m < least.tile_m {
            *least = entry;
        }
    }
    let shape = |entry: &AttnInfo| (entry.tile_m, entry.tile_n, entry.stages, entry.warps(), entry.path);
    let configuration = LINEAGE.iter().filter(move |entry| shape(entry) == shape(&LINEAGE[0]));
    let named = spec::kernels().filter(|kernel| OF_TESTS.contains(&kernel.symbol));
    let entries = decode.into_iter().chain(least.into_values()).chain(configuration);
    entries.map(|entry| entry.contract).chain(named).chain(MERGES.first().map(|merge| merge.contract))
}

/// A kernel, the other kernels of its launches, and the kernels that combine the splits of both, or quantise
/// their keys and values.
fn with_others(kernel: Contract) -> impl Iterator<Item = Contract> {
    let entry = |kernel| spec::attention().find(move |entry| entry.contract == kernel);
    let pair = [kernel].into_iter().chain(entry(kernel).into_iter().flat_map(spec::beside));
    let beside = move |of: fn(&AttnInfo) -> Option<Contract>, kernel| entry(kernel).and_then(of);
    pair.flat_map(move |kernel| {
        let of = [spec::combine_of, spec::quantise_of, spec::lay_of].map(|of| beside(of, kernel));
        [Some(kernel)].into_iter().chain(of)
    })
    .flatten()
}

/// A family, and optionally a word of one of its kernels.
type Trait = (Vec<&'static str>, Option<&'static str>);

/// The traits of a kernel and of the other kernels of its launches.
fn all_traits(kernel: Contract) -> BTreeSet<Trait> {
    with_others(kernel).flat_map(|kernel| traits(kernel.symbol)).collect()
}

/// The traits in a symbol: the family alone, and the family with each word except the tile. For the lineage,
/// the configuration is also a trait if the mask is full. Configurations on CUDA cores are no traits, because
/// their kernels take ten times as long.
fn traits(symbol: &'static str) -> impl Iterator<Item = Trait> {
    let lineage = spec::is_lineage(symbol).then_some("lineage");
    // In other places, `int8` is the dtype of a cache.
    let is_family = |at: usize, word: &str| FAMILIES.contains(&word) || (at, word) == (0, "int8");
    let words = symbol.split('_').enumerate().filter(|(at, word)| is_family(*at, word));
    let family: Vec<_> = words.map(|(_, word)| word).chain(lineage).collect();
    let is_tile = |word: &str| word.split_once('x').is_some_and(|(m, n)| is_number(m) && is_number(n));
    let is_own = move |word: &&str| !FAMILIES.contains(word) && !is_tile(word);
    let configuration = lineage.and_then(|_| symbol.splitn(5, '_').nth(4));
    let configuration = configuration.filter(|name| !name.ends_with("scalar") && symbol.contains("_full_"));
    let own = symbol.split('_').filter(is_own).chain(configuration).map(Some);
    own.chain([None]).map(move |word| match word {
        Some(word) if word.strip_prefix('d').is_some_and(is_number) => (mainloop(&family), Some(word)),
        word => (family.clone(), word),
    })
}

/// The families whose mainloop the family uses. Such families have the same tiles per head dim, so a head dim
/// of one family represents all of them. A kernel that combines splits has no mainloop, so its head dims are
/// traits of its own family.
fn mainloop(family: &[&'static str]) -> Vec<&'static str> {
    match family {
        ["paged"] => vec!["fwd"],
        [.., "lineage" | "combine"] => family.to_vec(),
        _ => family[..1].to_vec(),
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> BTreeSet<&'static str> {
        sample().iter().map(|kernel| kernel.symbol).collect()
    }

    #[test]
    fn every_word_of_every_family_appears() {
        let sample = sample();
        let seen: BTreeSet<_> = sample.iter().flat_map(|kernel| traits(kernel.symbol)).collect();
        for kernel in table() {
            let unseen: Vec<_> = traits(kernel.symbol).filter(|it| !seen.contains(it)).collect();
            assert!(unseen.is_empty(), "{}: {unseen:?}", kernel.symbol);
        }
        assert!(
            sample.len() * 7 < spec::KERNELS.len() * 2,
            "{} kernels are too many for a sample",
            sample.len()
        );
    }

    #[test]
    fn a_kernel_that_splits_brings_the_one_that_combines() {
        let sample = symbols();
        let splits =
            || spec::attention().filter(|entry| entry.splits && sample.contains(entry.contract.symbol));
        assert!(splits().count() > 5);
        for entry in splits() {
            let combine = spec::combine_of(entry).expect("the table has one").symbol;
            assert!(sample.contains(combine), "{} needs {combine}", entry.contract.symbol);
        }
    }

    #[test]
    fn small_problems_are_planned_for_the_sample() {
        let sample = symbols();
        for symbol in [
            "fwd_f16_d64_full_32x128_k2",
            "fwd_f16_d64_causal_64x64_packed",
            "decode_f16_d64_local_16_rows",
            "hopper_f16_d64_causal_128x128",
            "merge_f16",
        ] {
            assert!(sample.contains(symbol), "{symbol}");
        }
        let configuration = LINEAGE[0].contract.symbol;
        assert!(sample.contains(configuration) && sample.contains(&*configuration.replace("full", "causal")));
    }

    #[test]
    fn a_tile_is_no_trait_and_a_head_dim_is_its_mainloops() {
        let of = |symbol| traits(symbol).collect::<Vec<_>>();
        let family = vec!["fwd", "packed"];
        let own = |word| (family.clone(), word);
        let traits =
            [own(Some("bf16")), (vec!["fwd"], Some("d64")), own(Some("full")), own(Some("k2")), own(None)];
        assert_eq!(of("fwd_bf16_d64_full_64x128_k2_packed"), traits);
        assert!(of("hopper_paged_f16_d64_causal_128x128").contains(&(vec!["hopper"], Some("d64"))));
    }
}
