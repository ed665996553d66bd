//! Tests that kernels end and stay within the tensors if their lists contain garbage.
use super::attention::{Card, Front, HEADS, Seq, attend, card, card_for, module, variant, variant_of, words};
use super::{Lists, random};
use ferroflash::Error;
use ferroflash::spec::{And, BlockMask, MaskMarker};
use ferroflash::variant::Variant;
use ferroflash_tests::clamps::without_each_clamp;
use own_kernels::block_sparse::*;
use own_kernels::exact::BlockLists;
use ptx_sim::Options;

/// Lists of garbage in memory of these sizes.
fn garbage(seed: u64, sizes: [usize; 2]) -> [Vec<u32>; 2] {
    const SOME: [u32; 12] = [0, 1, 2, 3, 4, 5, 7, 8, 100, i32::MAX as u32, 1 << 31, u32::MAX];
    let mut random = random(seed, SOME.len() as u32);
    sizes.map(|size| (0..size).map(|_| SOME[random() as usize]).collect())
}

/// The results of a kernel with lists of garbage.
fn with_garbage<M: MaskMarker<Params = And<P, BlockMask>>, P: Copy>(
    card: &Card,
    (front, lengths): (Front, &[Seq]),
    (variant, tile): (&'static Variant<M>, [u32; 2]),
    params: P,
    seed: u64,
) -> Result<Vec<u32>, Error> {
    let longest = |of: usize| lengths.iter().map(|each| each[of]).max().expect("a sequence") as u32;
    let blocks = |of: usize| longest(of).div_ceil(tile[of]);
    let shape = [lengths.len() as u32, HEADS as u32, blocks(0), blocks(1)];
    let tiles = 4 * (shape[0] * shape[1] * shape[2]) as usize;
    let [tiles, blocks] = garbage(seed, [tiles, [0, 1, 9, 40][seed as usize % 4]]);
    let lists = Lists::upload(card, &BlockLists { tiles, blocks, shape, tile });
    let made = attend(card, front, lengths, variant, And::new(params, lists.mask))?;
    assert!(made.o.iter().all(|x| x.abs() <= 1.0), "a mean out of range");
    Ok(made.bits())
}

const DENSE: &[Seq] = &[[200, 461], [200, 461]];
const PAGED: &[Seq] = &[[140, 150], [140, 333]];

#[test]
fn lists_of_garbage_stay_within_the_tensors() {
    let card = card(Options::default());
    let (_documents, documents) = words(&card, &super::documents());
    for seed in 0..8 {
        let full = |symbol, variant, tile| {
            let made = with_garbage(&card, (Front::Dense, DENSE), (variant, tile), (), seed);
            made.unwrap_or_else(|error| panic!("{symbol}, seed {seed}: {error}"));
        };
        full("sparse_full", variant::<sparse_full::Kernel>("sparse_full"), [128, 64]);
        full("sparse_full_shared", variant::<sparse_full_shared::Kernel>("sparse_full_shared"), [32, 64]);
        let one_stage = variant::<sparse_full_one_stage::Kernel>("sparse_full_one_stage");
        full("sparse_full_one_stage", one_stage, [64, 32]);
        let hopper = card_for("hopper", Options::default());
        let of_hopper = variant::<sparse_full_hopper::Kernel>("sparse_full_hopper");
        let made = with_garbage(&hopper, (Front::Dense, DENSE), (of_hopper, [128, 128]), (), seed);
        made.unwrap_or_else(|error| panic!("sparse_full_hopper, seed {seed}: {error}"));
        let varlen = variant::<sparse_documents_varlen::Kernel>("sparse_documents_varlen");
        let paged = variant::<sparse_documents_paged::Kernel>("sparse_documents_paged");
        let lengths: &[Seq] = &[[150, 150], [7, 90], [0, 30], [200, 233]];
        for (front, lengths, variant) in [(Front::Varlen, lengths, varlen), (Front::Cached, PAGED, paged)] {
            let made = with_garbage(&card, (front, lengths), (variant, [128, 64]), documents, seed);
            made.unwrap_or_else(|error| panic!("{variant:?}, seed {seed}: {error}"));
        }
    }
}

#[test]
fn a_clamp_of_a_list_that_is_missing_is_noticed() {
    let run = |text: &str, seed: u64| {
        let card = card(Options { budget: 20_000_000, max_reports: 1, ..Options::default() });
        let variant = variant_of::<sparse_full::Kernel>("sparse_full", text);
        with_garbage(&card, (Front::Dense, DENSE), (variant, [128, 64]), (), seed)
    };
    let text = &module("sparse_full").text;
    let right: Vec<_> = (0..8).map(|seed| run(text, seed).expect("runs")).collect();
    let mut clamps = without_each_clamp(text, &["/block_list.rs"]);
    // The host has checked these parameters, so their minima need no clamp.
    clamps.retain(|clamp| !clamp.clamp.contains("mask.tile_index"));
    let lines: std::collections::BTreeSet<_> = clamps.iter().map(|clamp| &clamp.clamp).collect();
    assert!(lines.len() >= 5, "{lines:?}");
    for clamp in &clamps {
        let changes = |seed: usize| run(&clamp.text, seed as u64).ok().as_ref() != Some(&right[seed]);
        assert!((0..8).any(changes), "{clamp}");
    }
}
