//! Tests MLA decode in the simulator: sequences of every length in one batch, invalid integers, and bits that
//! do not depend on the batch. `simulated.rs` runs each kernel on its edge cases.
use crate::decode::SUPERFLUOUS;
use ferroflash::driver::SimDriver;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{AttnInfo, Class, Isa, combine_of, plain};
use ferroflash::{Attention, DType};
use ferroflash_tests::clamps::{Garbage, unnoticed};
use ferroflash_tests::is_carried;
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{attention, check_lengths_on, check_on};
use ferroflash_tests::orders::{Unseen, check_each, check_each_of};
use ptx_sim::Options;
use reference::{Case, Loaded, Pages, Random};

/// A case with DeepSeek's widths and approximately its scale, and with one query of 4 heads on one latent
/// head.
fn latent(filled: impl Into<Vec<usize>>) -> Case {
    let widths = Case { head_dim: 576, head_dim_v: Some(512), latent: true, ..Case::new(filled) };
    Case { heads: [4, 1], mask: Mask::Causal, scale: Some(0.07), ..widths }
}

/// An MLA kernel, and a simulated card with 16 SMs that runs it.
struct On {
    kernel: &'static AttnInfo,
    attention: Box<Attention<SimDriver>>,
}

impl On {
    /// The first portable and the first Hopper kernel in this build. The sample may lack the kernels that the
    /// planner would select.
    fn each() -> Vec<Self> {
        let hopper = SimDriver::of_multiprocessors("h200", Options::default(), Some(16));
        let hopper = Attention::new(hopper.expect("a known card"));
        let on = |isa, attention| {
            let is_one = |e: &&AttnInfo| is_carried(e.contract.symbol) && e.kv_dtype == e.dtype;
            let kernel = plain(isa, Class::Latent).find(is_one);
            On { kernel: kernel.expect("a build carries one"), attention: Box::new(attention) }
        };
        vec![on(Isa::Sm80, attention()), on(Isa::Sm90a, hopper)]
    }

    /// The first portable kernel for each kind of latents of eight bits in this build, and the first one of
    /// Hopper's for rows with scales.
    fn eight_bits() -> Vec<Self> {
        let on = |(isa, card, dtype)| {
            let carried = |entry: &&AttnInfo| is_carried(entry.contract.symbol) && entry.kv_dtype == dtype;
            let kernel = plain(isa, Class::Latent).find(carried).expect("a build carries one");
            let on = SimDriver::of_multiprocessors(card, Options::default(), Some(16)).expect("a known card");
            On { kernel, attention: Box::new(Attention::new(on)) }
        };
        let scaled = DType::E4m3Scaled;
        let kinds = [(Isa::Sm80, "l4", DType::E4m3), (Isa::Sm80, "l4", scaled), (Isa::Sm90a, "h200", scaled)];
        kinds.map(on).into()
    }

    fn symbol(&self) -> Option<&'static str> {
        Some(self.kernel.contract.symbol)
    }

    /// A case on pages that the kernel reads. TMA copies boxes of at least 8 rows.
    fn fit(&self, case: &Case) -> Case {
        let pages = match case.pages {
            Pages::Nhd(rows) if self.kernel.has_maps() && rows % 8 > 0 => Pages::Nhd(8 * rows),
            pages => pages,
        };
        Case { pages, dtype: self.kernel.dtype, kv_dtype: Some(self.kernel.kv_dtype), ..case.clone() }
    }

    #[track_caller]
    fn check(&self, case: &Case) {
        check_on(&self.attention, &self.fit(case), self.symbol())
    }
}

/// Tests every length up to three stages. In one batch, each warp finds its sequence alone; in the other
/// batch, all warps find it together.
#[test]
fn every_length() {
    for (lengths, pages) in [(0..32, Pages::Dense), (32..64, Pages::Nhd(3)), (60..97, Pages::Nhd(16))] {
        let case = Case { pages, ..latent(lengths.collect::<Vec<_>>()) };
        On::each().iter().chain(&On::eight_bits()).for_each(|on| on.check(&case));
    }
}

/// A plan only knows bounds, because a replayed graph may find other lengths.
#[test]
fn other_lengths_under_one_plan() {
    for (pages, splits) in [(Pages::Nhd(16), Splits::Auto), (Pages::Nhd(3), Splits::Keys(128))] {
        let case = Case { pages, splits, max_k: 400, ..latent([300, 40, 200, 1, 64]) };
        let lengths: [[i32; 5]; 4] = [[300, 40, 200, 1, 64], [0; 5], [1, 0, 199, 0, 16], [17, 40, 0, 1, 63]];
        for on in On::each().iter().chain(&On::eight_bits()) {
            check_lengths_on(&on.attention, &on.fit(&case), on.symbol(), &lengths.map(Vec::from));
        }
    }
}

/// Tests scores that exceed the lazy maximum by so much that a warp must rescale, in one warp only, stage
/// after stage.
#[test]
fn maxima_of_one_warp_reach_all() {
    for seed in 1..5 {
        let case = Case { heads: [16, 1], ..latent([260, 96]) };
        let case = Case { scale: Some(0.4), splits: Splits::Exactly(2), ..case }.seeded(seed);
        On::each().iter().for_each(|on| on.check(&case));
    }
}

/// Launches with invalid device data. If an MLA kernel loses any one clamp, at least one of these launches
/// goes wrong. The launches have few and many sequences, lengths that are off by one, invalid lengths, and
/// page indices that name no page.
fn garbage() -> Vec<Garbage> {
    const MOST: usize = 160;
    let plain = |filled: Vec<usize>| Case { max_k: MOST, heads: [2, 1], ..latent(filled) };
    let mut all = vec![];
    // Below 256 keys, no sequence has splits. Otherwise the device computes their number.
    for (batch, max_k) in [(6, MOST), (40, MOST), (40, 256)] {
        let filled: Vec<usize> = (0..batch).map(|b| if b % 12 == 0 { max_k } else { 20 }).collect();
        for (lengths, splits) in [
            ([max_k as i32 + 1, -1, 20, 0], Splits::Auto),
            ([i32::MAX, 20, i32::MIN, 20], Splits::Keys(128)),
            ([max_k as i32 + 1, -1, 20, 0], Splits::Exactly(2)),
        ] {
            let case = Case { splits, max_k, ..plain(filled.clone()) };
            let lengths = lengths.iter().copied().cycle().take(batch).collect();
            all.push(Garbage { case, lengths, starts: None });
        }
    }
    let case = Case { pages: Pages::Nhd(16), splits: Splits::Keys(128), ..plain(vec![20]) };
    all.push(Garbage { case, lengths: vec![MOST as i32], starts: None });
    all
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    for on in On::each().iter().chain(&On::eight_bits()) {
        let symbol = on.kernel.contract.symbol;
        let subject = Subject::all().find(|subject| subject.kernel.symbol == symbol).expect("in the table");
        let garbage: Vec<_> =
            garbage().into_iter().map(|all| Garbage { case: on.fit(&all.case), ..all }).collect();
        let unnoticed = unnoticed(&subject, &garbage, SUPERFLUOUS);
        assert!(unnoticed.is_empty(), "{symbol}:\n{}", unnoticed.join("\n"));
    }
}

/// With a fixed number of keys per split, the bits of a sequence do not depend on other sequences, on its
/// place in the batch, or on its pages.
#[test]
fn chunks_make_sequences_independent() {
    On::each().iter().chain(&On::eight_bits()).for_each(are_independent);
}

fn are_independent(on: &On) {
    let mut random = Random::new(11);
    let one = |case: &Case, b: usize| {
        let memory = on.fit(case).memory();
        let lengths: Vec<i32> = case.filled.iter().map(|n| *n as i32).collect();
        let mut loaded = Loaded::new(&on.attention, &memory, on.symbol()).expect("a plan");
        let (_, outcome) = loaded.launch(None, &lengths).expect("a launch");
        outcome.bits(b)
    };
    let chunks = |filled: Vec<usize>| Case { splits: Splits::Keys(128), ..latent(filled) };
    let expected = one(&Case { seeds: vec![99], ..chunks(vec![300]) }, 0);
    for round in 0..20 {
        let batch = 1 + (random.bits() % 12) as usize;
        // A sequence at an even place shares no page with the previous sequence.
        let place = (random.bits() % batch as u64) as usize & !1;
        let filled = (0..batch).map(|b| if b == place { 300 } else { (random.bits() % 160) as usize });
        let pages = [Pages::Dense, Pages::Nhd(16), Pages::Nhd(7), Pages::Rows][round % 4];
        let mut case = Case { pages, ..chunks(filled.collect()) };
        (case.seeds[place], case.seed) = (99, round as u64);
        assert_eq!(one(&case, place), expected, "{case:?}, sequence {place}");
    }
}

/// Instructions whose removal the launches of the next test cannot show.
#[rustfmt::skip]
const UNSEEN: &[Unseen] = &[
    ["bar.sync 0", "shared_words.rs", "decode.rs tests the search among many sequences, and counters"],
    ["bar.sync 0", "block.rs", "the same; without a search, the next round begins with another barrier"],
    ["bar.sync 0", "warpgroups.rs", "two barriers surround the end of the mbarriers; one orders the data"],
    ["bar.sync", "refilled.rs", "the simulator's products end in all warps of a warpgroup at once"],
    ["bar.warp.sync", "", "the simulator's lanes meet again by themselves"],
    ["fence.mbarrier_init", "", "the simulator's copies see mbarriers at once"],
    ["fence.proxy.async", "warpgroups.rs", "the simulator orders copies behind earlier accesses of threads"],
    ["cp.async.commit_group", "", "the wait for Q is for all copies; on lists, stage 0 lands after Q"],
    ["wgmma.fence", "operand_exchange.rs", "ptxas wants one in each basic block; the first one suffices"],
    ["mbarrier.try_wait", "refilled.rs", "the product of scores, or the other warpgroup, waits for it"],
];

/// On lists of keys, threads copy. A warp that has multiplied a part of a stage has fenced it.
#[rustfmt::skip]
const UNSEEN_OF_LISTS: &[Unseen] = &[
    ["fence.proxy.async", "operand_exchange.rs", "the other warpgroup fences before it passes its operand"],
];

/// The launches have several items per block, splits, and maxima that grow.
#[test]
fn an_order_of_hoppers_warpgroups_that_is_missing_is_noticed() {
    let case =
        Case { heads: [80, 1], scale: Some(0.4), splits: Splits::Exactly(2), ..latent([300, 130, 40, 64]) };
    let dense = Case { heads: [40, 1], queries: 2, ..case.clone() };
    let lists = Case { listed: true, mask: Mask::Full, ..case };
    let of_lists = [UNSEEN, UNSEEN_OF_LISTS].concat();
    for (class, case, unseen) in [(Class::Latent, dense, UNSEEN), (Class::Listed, lists, &of_lists)] {
        let kernel = plain(Isa::Sm90a, class).find(|entry| is_carried(entry.contract.symbol));
        let kernel = kernel.expect("a build carries one");
        let case = Case { dtype: kernel.dtype, kv_dtype: Some(kernel.kv_dtype), ..case };
        // Turns, their fences, and products.
        assert!(check_each(kernel.contract.symbol, &case, unseen) > 20);
    }
}

/// The combine kernel begins early. It waits before it reads splits or, if it has none, before it ends.
/// One block finds a sequence of one split only.
#[test]
fn a_combine_kernel_that_does_not_wait_is_noticed() {
    let case = Case { heads: [40, 1], splits: Splits::Exactly(2), ..latent([300, 10, 10]) };
    let kernel = plain(Isa::Sm90a, Class::Latent).find(|entry| is_carried(entry.contract.symbol));
    let kernel = kernel.expect("a build carries one");
    let combine = combine_of(kernel).expect("it splits");
    assert!(combine.is_dependent());
    let case = Case { dtype: kernel.dtype, kv_dtype: Some(kernel.kv_dtype), ..case };
    assert_eq!(check_each_of(combine.symbol, kernel.contract.symbol, &case, UNSEEN), 2);
}
