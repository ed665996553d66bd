//! Tests sparse MLA in the simulator: lists of every length, invalid slots, and keys that a list names twice
//! (`Cache::lists` in the reference). `simulated.rs` runs each kernel on its edge cases.
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::request::Splits;
use ferroflash::spec::{AttnInfo, Class, Isa, plain};
use ferroflash_tests::is_carried;
use ferroflash_tests::on_cache::{attention, check_on};
use reference::{Case, Pages, Random};

/// A case with DeepSeek's widths and approximately its scale, whose queries have 4 heads and these numbers of
/// keys.
fn listed(filled: impl Into<Vec<usize>>) -> Case {
    let widths = Case { head_dim: 576, head_dim_v: Some(512), latent: true, ..Case::new(filled) };
    Case { heads: [4, 1], listed: true, scale: Some(0.07), ..widths }
}

/// The first kernel in this build.
fn kernel() -> &'static AttnInfo {
    let carried = |entry: &&AttnInfo| is_carried(entry.contract.symbol);
    plain(Isa::Sm80, Class::Listed).find(carried).expect("a build carries one")
}

/// Runs a case on an engine, with the kernel's dtype.
#[track_caller]
fn check(attention: &Attention<SimDriver>, case: &Case) {
    let case = Case { dtype: kernel().dtype, ..case.clone() };
    check_on(attention, &case, Some(kernel().contract.symbol));
}

#[test]
fn every_length() {
    for (lengths, pages) in [(0..32, Pages::Dense), (32..64, Pages::Nhd(3)), (60..97, Pages::Nhd(16))] {
        check(&attention(), &Case { pages, ..listed(lengths.collect::<Vec<_>>()) });
    }
}

#[test]
fn lists_of_other_lengths_than_their_keys() {
    let mut random = Random::new(5);
    for (topk, splits) in [(128, Splits::Auto), (100, Splits::Exactly(2)), (513, Splits::Chunk(128))] {
        let filled: Vec<usize> = (0..8).map(|_| (random.bits() % (topk as u64 + 1)) as usize).collect();
        check(&attention(), &Case { splits, max_k: topk, pages: Pages::Nhd(5), ..listed(filled) });
    }
}
