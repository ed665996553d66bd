//! Tests sparse MLA in the simulator: lists of every length, invalid slots, keys that a list names twice
//! (`Cache::lists` in the reference), and kernels without one of the checks of slots. `simulated.rs` runs
//! each kernel on its edge cases.
use ferroflash::driver::SimDriver;
use ferroflash::request::Splits;
use ferroflash::spec::{AttnInfo, Class, Isa, plain};
use ferroflash::{Attention, DType, ptx};
use ferroflash_tests::clamps::without_each_comparison;
use ferroflash_tests::is_carried;
use ferroflash_tests::on_cache::check_on;
use ptx_sim::Options;
use reference::{Case, Pages, Random};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A case with DeepSeek's widths and approximately its scale, whose queries have 4 heads and these numbers of
/// keys.
fn listed(filled: impl Into<Vec<usize>>) -> Case {
    let widths = Case { head_dim: 576, head_dim_v: Some(512), latent: true, ..Case::new(filled) };
    Case { heads: [4, 1], listed: true, scale: Some(0.07), ..widths }
}

/// A kernel on lists, and the simulated card that runs it.
struct On {
    kernel: &'static AttnInfo,
    card: &'static str,
    attention: Box<Attention<SimDriver>>,
}

impl On {
    /// The first kernel in this build on an ISA's card that reads such latents.
    fn first(isa: Isa, card: &'static str, reads: impl Fn(&AttnInfo) -> bool) -> Self {
        let is_there = |e: &&AttnInfo| is_carried(e.contract.symbol) && reads(e);
        let kernel = plain(isa, Class::Listed).find(is_there).expect("a build carries one");
        On { kernel, card, attention: Box::new(engine(card, Options::default())) }
    }

    /// The first portable and the first Hopper kernel in this build, and the first ones for latents of eight
    /// bits.
    fn each() -> Vec<Self> {
        let as_queries = |e: &AttnInfo| e.kv_dtype == e.dtype;
        let of = |isa, card, dtype| Self::first(isa, card, move |e: &AttnInfo| e.kv_dtype == dtype);
        let hopper = Self::first(Isa::Sm90a, "h200", as_queries);
        let portable = Self::first(Isa::Sm80, "orin", as_queries);
        let scaled = DType::E4m3Scaled;
        let [e4m3, rows] = [DType::E4m3, scaled].map(|dtype| of(Isa::Sm80, "l4", dtype));
        vec![portable, hopper, e4m3, rows, of(Isa::Sm90a, "h200", scaled)]
    }

    /// Runs a case on an engine, with the kernel's dtype.
    #[track_caller]
    fn check_on(&self, attention: &Attention<SimDriver>, case: &Case) {
        let AttnInfo { dtype, kv_dtype, .. } = *self.kernel;
        // Rows with scales have all columns.
        let head_dim = if kv_dtype == DType::E4m3Scaled { 576 } else { case.head_dim };
        let case = Case { dtype, kv_dtype: Some(kv_dtype), head_dim, ..case.clone() };
        check_on(attention, &case, Some(self.kernel.contract.symbol));
    }
}

/// A simulated card with 16 SMs.
fn engine(card: &str, options: Options) -> Attention<SimDriver> {
    Attention::new(SimDriver::of_multiprocessors(card, options, Some(16)).expect("a known card"))
}

/// Runs a case on each kernel.
#[track_caller]
fn check(case: &Case) {
    On::each().iter().for_each(|on| on.check_on(&on.attention, case));
}

#[test]
fn every_length() {
    for (lengths, pages) in [(0..32, Pages::Dense), (32..64, Pages::Nhd(3)), (60..97, Pages::Nhd(16))] {
        check(&Case { pages, ..listed(lengths.collect::<Vec<_>>()) });
    }
}

#[test]
fn lists_of_other_lengths_than_their_keys() {
    let mut random = Random::new(5);
    for (topk, splits) in [(128, Splits::Auto), (100, Splits::Exactly(2)), (513, Splits::Keys(128))] {
        let filled: Vec<usize> = (0..8).map(|_| (random.bits() % (topk as u64 + 1)) as usize).collect();
        check(&Case { splits, max_k: topk, pages: Pages::Nhd(5), ..listed(filled) });
    }
}

#[test]
fn long_lists_and_many_queries() {
    check(&Case { max_k: 4096, heads: [16, 1], pages: Pages::Nhd(64), ..listed([4000]) });
    let many: Vec<usize> = (0..150).map(|i| i % 3).collect();
    check(&Case { max_k: 2, heads: [1, 1], ..listed(many) });
}

/// Launches whose slots include invalid ones, in the last list of memory, too. Lists end inside of the first
/// and of the second stage. Then slot 0, which the kernel reads for integers behind all lists, is a row of
/// NaN. Columns end before the kernel's.
fn launches() -> Vec<Case> {
    let narrow = Case { head_dim: 288, head_dim_v: Some(256), pages: Pages::Nhd(64), ..listed([10]) };
    let short = [20, 37].into_iter().flat_map(|topk| {
        let case = Case { max_k: topk, ..narrow.clone() };
        [1, 2, 3].map(|seed| case.clone().seeded(seed))
    });
    let wide = [
        Case { pages: Pages::Nhd(3), max_k: 70, ..listed([40, 0, 63]) },
        Case { splits: Splits::Exactly(2), max_k: 300, ..listed([300, 290]) },
    ];
    wide.into_iter().chain(short).collect()
}

#[test]
fn a_check_of_slots_that_is_missing_is_noticed() {
    On::each().iter().for_each(each_check_is_needed);
}

fn each_check_is_needed(on: &On) {
    let symbol = on.kernel.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let passes = |text: &str| {
        let options = Options { budget: 20_000_000, max_reports: 1, ..Options::default() };
        let attention = engine(on.card, options);
        // SAFETY: only the simulator runs it, which checks every access.
        unsafe { attention.load_from(symbol, text) }.expect("a module");
        let check = |case| catch_unwind(AssertUnwindSafe(|| on.check_on(&attention, case)));
        launches().iter().all(|case| check(case).is_ok())
    };
    assert!(passes(&text), "{symbol}");
    let all = without_each_comparison(&text, &["/listed.rs"]);
    // Hopper's kernel of rows with scales has three comparisons, and the others have four.
    let is_short = on.kernel.isa == Isa::Sm90a && on.kernel.kv_dtype == DType::E4m3Scaled;
    assert!(all.len() >= if is_short { 6 } else { 8 }, "{symbol}: {}", all.len());
    let unnoticed: Vec<_> = all.iter().filter(|one| passes(&one.text)).map(ToString::to_string).collect();
    assert!(unnoticed.is_empty(), "{symbol}:\n{}", unnoticed.join("\n"));
}
