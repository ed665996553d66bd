//! Tests of decode kernels in the simulator: lengths, pages and splits of every kind, and garbage in device
//! memory. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::DType;
use ferroflash::kernels::MaskKind;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{COMBINES, Class, Isa, SplitKernels, plain};
use ferroflash_tests::clamps::{Garbage, unnoticed};
use ferroflash_tests::is_carried;
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check, check_lengths};
use reference::{Case, Pages, Random};

/// There are more rows than a block takes, so several blocks share the rows of a key head and read the same
/// keys. The cases vary the number of query heads per key head, the number of queries, and the mask.
#[test]
fn blocks_of_rows() {
    let window = |left, right| Mask::Window { left: Some(left), right: Some(right) };
    let cases = [
        ([17, 1], Mask::Full),
        ([4, 6], Mask::Causal),
        ([4, 8], Mask::Causal),
        ([3, 11], window(9, 0)),
        ([1, 64], Mask::Causal),
        ([8, 8], window(40, 2)),
        ([64, 1], Mask::Full),
    ];
    let splits = [Splits::Auto, Splits::Exactly(3), Splits::Keys(128)];
    let pages = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(3), Pages::Interleaved(64)];
    for (i, ([group, queries], mask)) in cases.into_iter().enumerate() {
        let plain = Case { queries, mask, heads: [2 * group, 2], ..Case::new([0, 1, 300, 40, 17]) };
        for (turn, splits) in splits.into_iter().enumerate() {
            let (counters, sinks) = ((i + turn) % 2 == 0, turn == 1);
            check(&Case { splits, counters, sinks, pages: pages[(i + turn) % 4], ..plain.clone() }, None);
        }
    }
    // There is a single sequence. On a card of 16 SMs, the blocks of 8 rows leave enough SMs for four splits.
    for (queries, counters) in [(4, true), (4, false), (8, true), (8, false)] {
        let one = Case { queries, counters, mask: Mask::Causal, heads: [4, 1], ..Case::new([700]) };
        check(&one, None);
    }
    // The kernel takes 8 rows.
    let of_8_rows = |symbol: &&str| symbol.ends_with("_8_rows") && is_carried(symbol);
    let symbol = plain(Isa::Sm80, Class::Decode).map(|entry| entry.contract.symbol).find(of_8_rows);
    let few = Case { heads: [20, 2], queries: 2, mask: Mask::Causal, ..Case::new([70, 200]) };
    check(&few, Some(symbol.expect("a build carries one")));
}

/// There are more sequences than a warp has lanes, more work items than blocks, and one sequence that is much
/// longer than the others.
#[test]
fn many_sequences() {
    let mut random = Random::new(7);
    for (batch, splits) in [(33, Splits::Auto), (70, Splits::Auto), (40, Splits::Keys(128))] {
        let mut filled: Vec<usize> = (0..batch).map(|_| (random.bits() % 60) as usize).collect();
        filled[batch / 2] = 900;
        for (counters, cache) in [(true, DType::F16), (false, DType::F16), (true, DType::Int8)] {
            let case = Case { splits, counters, kv_dtype: Some(cache), ..Case::new(filled.clone()) };
            check(&Case { heads: [2, 1], ..case }, None);
        }
    }
}

/// A plan only knows bounds, because a replayed graph may find other lengths.
#[test]
fn other_lengths_under_one_plan() {
    let filled = vec![500, 40, 300, 1, 64];
    for (pages, splits) in [(Pages::Nhd(16), Splits::Auto), (Pages::Hnd(3), Splits::Keys(128))] {
        let case = Case { pages, splits, max_k: 600, ..Case::new(filled.clone()) };
        let lengths: [[i32; 5]; 4] = [[500, 40, 300, 1, 64], [0; 5], [1, 0, 299, 0, 16], [17, 40, 0, 1, 63]];
        check_lengths(&case, None, &lengths.map(Vec::from));
    }
}

/// With garbage in device memory, a launch must touch no memory outside of its tensors. The result of a
/// sequence is judged if the cache contains the keys of its clamped length.
#[test]
fn garbage_lengths_and_pages() {
    let most = 120;
    let caches = [DType::F16, DType::Int8];
    let layouts = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(5)];
    for (cache, pages) in caches.into_iter().flat_map(|cache| layouts.map(|pages| (cache, pages))) {
        for (batch, queries) in [(6, 20), (40, 1)] {
            let filled: Vec<usize> = (0..batch).map(|b| if b % 3 == 0 { most } else { 50 }).collect();
            let case = Case { kv_dtype: Some(cache), pages, queries, heads: [2, 1], ..Case::new(filled) };
            let case = Case { max_k: most, ..case };
            let garbage = [i32::MAX, -1, 51, i32::MIN, 0, 50, most as i32 + 1, 1, i32::MIN + 1];
            let lengths = (0..batch).map(|b| garbage[b % garbage.len()]).collect();
            check_lengths(&case, None, &[lengths]);
        }
    }
}

/// Launches with invalid device data. If a decode kernel loses any one clamp, except those in
/// [`SUPERFLUOUS`], at least one of these launches goes wrong. The launches have few and many sequences,
/// lengths that are off by one, invalid lengths, and unused pages.
fn garbage(counters: bool) -> Vec<Garbage> {
    const MOST: usize = 300;
    let plain = |filled: Vec<usize>| Case { counters, heads: [2, 1], max_k: MOST, ..Case::new(filled) };
    let mut all = vec![];
    // Below 256 keys, no sequence has splits. Otherwise the device computes their number.
    for (batch, max_k) in [(6, MOST), (40, MOST), (40, 100)] {
        let filled: Vec<usize> = (0..batch).map(|b| if b % 12 == 0 { max_k } else { 50 }).collect();
        let by_one = ([max_k as i32 + 1, -1, 50, 0], Splits::Auto);
        let by_far = ([i32::MAX, 50, i32::MIN, 50], Splits::Keys(128));
        all.extend([by_one, by_far].map(|(lengths, splits)| Garbage {
            case: Case { splits, max_k, ..plain(filled.clone()) },
            lengths: lengths.iter().copied().cycle().take(batch).collect(),
            starts: None,
        }));
    }
    let case = Case { pages: Pages::Nhd(16), splits: Splits::Keys(128), ..plain(vec![20]) };
    all.push(Garbage { case, lengths: vec![MOST as i32], starts: None });
    all
}

/// The clamps that other clamps make superfluous. A column of the block table follows from a clamped length,
/// and the host has checked that the table has pages for this length. A length of 0 stays 0 under any
/// maximum. LLVM gives some columns no source line.
pub const SUPERFLUOUS: &[&[&str]] = &[
    &["column.min(cache.columns - 1)"],
    &["table.rs:0:"],
    &["max_keys) == 0 && "],
    // These sequences start at `cu_seqlens_k`; `decode_tensors.rs` removes their clamps.
    &["order.starts"],
    &["Self::within(starts.get(index)"],
];
/// Without splits, no combine kernel runs.
const SUPERFLUOUS_IN_MERGES: &[&[&str]] =
    &[&["let keys = p.keys(of * 32 + warp.lane()).clamped(order.max_keys)"]];

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let of = |kind: MaskKind| {
        let mut carried = plain(Isa::Sm80, Class::Decode).filter(|entry| is_carried(entry.contract.symbol));
        carried.find(|entry| entry.head_dim == 64 && entry.mask == kind).map(|entry| entry.contract.symbol)
    };
    let mut combines = COMBINES.iter().filter(|entry| entry.of == SplitKernels::Decoding);
    let combine = combines.find(|entry| entry.head_dim == 64 && is_carried(entry.contract.symbol));
    let combine = combine.map(|entry| entry.contract.symbol);
    for symbol in [of(MaskKind::Causal), of(MaskKind::Local), combine] {
        let symbol = symbol.expect("a build carries one");
        let subject = Subject::all().find(|subject| subject.kernel.symbol == symbol).expect("in the table");
        let in_merges = if subject.merges() { SUPERFLUOUS_IN_MERGES } else { &[] };
        let superfluous = [SUPERFLUOUS, in_merges].concat();
        let unnoticed = unnoticed(&subject, &garbage(!subject.merges()), &superfluous);
        assert!(unnoticed.is_empty(), "{symbol}:\n{}", unnoticed.join("\n"));
    }
}
