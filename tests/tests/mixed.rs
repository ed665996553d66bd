//! Tests mixed batches on KV caches in the simulator: sequences of few and of many queries in one launch.
//! `simulated.rs` runs each kernel on its edge cases.
mod shares;

use ferroflash::driver::SimDriver;
use ferroflash::kernels::Contract;
use ferroflash::plan::AnyPlan;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{AttnInfo, Class, Entry, Isa, MaskKind, NumberTiles, beside, combine_of, plain};
use ferroflash::{Attention, DType};
use ferroflash_tests::clamps::{Garbage, garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{self, check_garbage};
use ferroflash_tests::{is_carried, is_thorough};
use ptx_sim::Options;
use reference::{Case, Loaded, Outcome, Pages, Random};

/// The kernel that numbers the tiles of the prefill kernel.
const NUMBER_TILES: Contract = <NumberTiles as Entry>::CONTRACT;

/// The kernels of a mixed batch.
#[derive(Clone, Copy)]
struct Pair {
    /// The decode kernel.
    few: &'static AttnInfo,
    /// The decode kernel for every sequence of a cache, with the tiles of `few`.
    decode: &'static str,
    /// The prefill kernel for every sequence of a cache, with the tiles of `many`.
    paged: &'static str,
    card: &'static str,
    pages: [Pages; 4],
    /// Gives a case the mask and the scores that need these kernels.
    scored: fn(Case) -> Case,
}

/// Returns the kernel for every sequence of a cache: its name is `symbol` with another family.
fn same_tiles(class: Class, symbol: &str, [mixed, family]: [&str; 2]) -> &'static str {
    let symbol = symbol.replace(mixed, family);
    let is_own = |e: &&AttnInfo| e.contract.symbol == symbol;
    plain(Isa::Sm80, class).find(is_own).expect("equal tiles").contract.symbol
}

/// The kernels that every build carries: portable ones on KV caches of f16, e4m3 and int8, then Hopper's.
fn pairs() -> [Pair; 5] {
    let portable = |cache, mask| {
        let of = |e: &&AttnInfo| {
            let kind = (e.head_dim, e.dtype, e.kv_dtype, e.mask);
            kind == (64, DType::F16, cache, mask) && is_carried(e.contract.symbol)
        };
        let few = plain(Isa::Sm80, Class::Few).find(of).expect("a build carries one");
        let many = beside(few).next().expect("in the table");
        Pair {
            few,
            decode: same_tiles(Class::Decode, few.contract.symbol, ["mixed_few", "decode"]),
            paged: same_tiles(Class::Paged, many.symbol, ["mixed_many", "paged"]),
            card: "l4",
            pages: [Pages::Dense, Pages::Nhd(16), Pages::Hnd(5), Pages::Rows],
            scored: |case| case,
        }
    };
    let [f16, e4m3] = [DType::F16, DType::E4m3].map(|cache| portable(cache, MaskKind::Causal));
    let int8 = portable(DType::Int8, MaskKind::Local);
    let pages = [Pages::Dense, Pages::Nhd(16), Pages::Hnd(24), Pages::Nhd(8)];
    let hopper = |pair: Pair| {
        let of = |e: &&AttnInfo| {
            let AttnInfo { dtype, kv_dtype, head_dim, mask, .. } = *pair.few;
            (e.dtype, e.kv_dtype, e.head_dim, e.mask) == (dtype, kv_dtype, head_dim, mask)
        };
        let many = plain(Isa::Sm90a, Class::Paged).find(of).expect("in the table").contract;
        Pair { paged: many.symbol, card: "h200", pages, ..pair }
    };
    [f16, e4m3, int8, hopper(f16), hopper(e4m3)]
}

const fn window(left: u32, right: u32) -> Mask {
    Mask::Window { left: Some(left), right: Some(right) }
}

/// The pairs for windows, softcap and sinks that this build carries, each with one set of scores, for tests
/// that need no other kernel.
fn general() -> Vec<Pair> {
    let on = |cache, head_dim: u32, mask, sink: bool, scored: fn(Case) -> Case| {
        let is_one = move |e: &&AttnInfo| {
            let kind = (e.head_dim, e.dtype, e.kv_dtype, e.mask);
            kind == (head_dim, DType::F16, cache, mask) && is_carried(e.contract.symbol)
        };
        let few = plain(Isa::Sm80, Class::Few).find(is_one)?;
        let many = beside(few).find(|many| many.symbol.contains("_sink_") == sink)?;
        is_carried(many.symbol).then(|| Pair { few, scored, ..pairs()[0] })
    };
    let (local, causal) = (MaskKind::Local, MaskKind::Causal);
    let of = |head_dim, mask, sink, scored| on(DType::F16, head_dim, mask, sink, scored);
    let all = [
        on(DType::E4m3, 64, local, true, |case| Case { mask: window(5, 0), sinks: true, ..case }),
        on(DType::Int8, 64, local, false, |case| Case { mask: window(70, 0), ..case }),
        on(DType::E4m3, 128, local, false, |case| Case { mask: window(70, 2), head_dim: 128, ..case }),
        on(DType::E4m3, 256, local, false, |case| Case { softcap: Some(30.0), head_dim: 208, ..case }),
        of(64, local, false, |case| Case { mask: window(70, 2), ..case }),
        of(64, local, false, |case| Case { softcap: Some(5.0), ..case }),
        of(64, local, true, |case| Case { mask: window(5, 0), sinks: true, ..case }),
        of(64, causal, true, |case| Case { sinks: true, ..case }),
        of(128, local, false, |case| Case { mask: window(70, 2), head_dim: 128, ..case }),
        of(256, local, false, |case| Case { mask: window(200, 0), head_dim: 256, ..case }),
        of(256, local, false, |case| Case { softcap: Some(30.0), head_dim: 200, ..case }),
    ];
    assert!(all.iter().all(Option::is_some) || !is_thorough(), "a whole build carries them");
    all.into_iter().flatten().collect()
}

/// A simulator of a card with 16 SMs that runs the kernels.
fn attention(pair: &Pair) -> Attention<SimDriver> {
    if pair.few.kv_dtype == pair.few.dtype && pair.card == "l4" {
        return on_cache::attention();
    }
    let card = SimDriver::of_multiprocessors(pair.card, Options::default(), Some(16));
    Attention::new(card.expect("a known card"))
}

/// A case with four query heads per key head, for which decode takes up to four queries per sequence.
fn case(pair: &Pair, queries: &[usize], keys: &[usize], pages: Pages) -> Case {
    let few = pair.few;
    let case = Case { dtype: few.dtype, kv_dtype: Some(few.kv_dtype), heads: [8, 2], ..Case::new(keys) };
    (pair.scored)(Case { pages, mask: Mask::Causal, ..case }.varlen_queries(queries))
}

fn lengths(case: &Case) -> Vec<i32> {
    case.filled.iter().map(|n| *n as i32).collect()
}

/// Launches a case by an earlier plan or by a new one, and checks the results. `config` names the kernel of a
/// new plan.
#[track_caller]
fn launch(
    attention: &Attention<SimDriver>,
    case: &Case,
    config: Option<&str>,
    plan: Option<&AnyPlan>,
) -> (AnyPlan, Outcome) {
    let memory = case.memory();
    let mut loaded = Loaded::new(attention, &memory, config).expect("a plan");
    on_cache::launch(attention, (case, &memory), &mut loaded, plan, &lengths(case))
}

/// Tests batches of no sequences, of sequences for decode only, of sequences for prefill only, and of
/// sequences on both sides of the threshold.
#[test]
fn mixtures() {
    let mixtures: [(&[usize], &[usize]); 6] = [
        (&[1, 0, 4, 5, 150, 1], &[300, 7, 64, 40, 170, 0]),
        (&[1, 1, 1, 4, 9], &[300, 17, 700, 4, 9]),
        (&[40, 129, 5], &[40, 200, 33]),
        (&[0, 0, 3, 6], &[5, 0, 90, 90]),
        (&[1, 1, 1], &[90, 0, 1400]),
        (&[700, 0, 4, 1], &[730, 5, 9, 40]),
    ];
    let layouts = [(Pages::Nhd(16), true), (Pages::Hnd(24), false), (Pages::Dense, true)];
    let of = |pair: Pair| mixtures.map(|mixture| (pair, mixture));
    for (pair, (queries, keys)) in pairs().into_iter().flat_map(of) {
        // `sequences_have_the_bits_of_their_own_launches` launches these kernels.
        assert!(is_carried(pair.decode) && is_carried(pair.paged), "{} and {}", pair.decode, pair.paged);
        for (pages, counters) in layouts {
            let case = Case { counters, ..case(&pair, queries, keys, pages) };
            // These sequences are too short for the planner to choose Hopper's kernel.
            let config = (pair.card == "h200").then_some(pair.few.contract.symbol);
            let (plan, _) = launch(&attention(&pair), &case, config, None);
            assert_eq!(plan.contract().symbol, pair.few.contract.symbol);
        }
    }
}

/// A plan only knows bounds, because a replayed graph may find other numbers of queries and keys.
#[test]
fn other_mixtures_under_one_plan() {
    let mixtures = [
        ([1, 0, 4, 5, 150, 1], [300, 7, 64, 40, 170, 0]),
        ([150, 1, 1, 0, 5, 4], [150, 300, 1, 33, 5, 4]),
        ([0, 4, 150, 1, 1, 5], [0, 200, 299, 3, 0, 90]),
    ];
    for pair in pairs() {
        let case = |queries: &[usize], keys: &[usize]| case(&pair, queries, keys, Pages::Dense);
        let (attention, mut plan) = (attention(&pair), None);
        for (queries, keys) in mixtures {
            let case = Case { max_k: 300, ..case(&queries, &keys) };
            let config = Some(pair.few.contract.symbol);
            plan = Some(launch(&attention, &case, config, plan.as_ref()).0);
        }
    }
}

/// The bits of O and LSE of every sequence.
type Bits = Vec<(Vec<u16>, Vec<u32>)>;

fn bits(attention: &Attention<SimDriver>, case: &Case, config: &str) -> Bits {
    let (plan, outcome) = launch(attention, case, Some(config), None);
    assert_eq!(plan.contract().symbol, config);
    let sequences = (0..case.filled.len()).map(|b| outcome.bits(b));
    sequences.collect()
}

/// Tests that sequences of many queries have the same bits as in a launch of the prefill kernel alone. If
/// splits have a fixed number of keys, each sequence of few queries must have the same bits as in a launch of
/// the decode kernel on this sequence alone.
#[test]
fn sequences_have_the_bits_of_their_own_launches() {
    let rounds = if is_thorough() { [200, 30, 30, 100, 30] } else { [12, 6, 12, 8, 6] };
    for (pair, rounds) in pairs().into_iter().zip(rounds) {
        have_own_bits(&pair, rounds);
    }
}

/// Compares `rounds` random mixtures.
fn have_own_bits(pair: &Pair, rounds: usize) {
    let (mut random, attention, few) = (Random::new(5), attention(pair), pair.few);
    let mut compared = [0; 2];
    for round in 0..rounds {
        let mut below = |most: usize| (random.bits() % most as u64) as usize;
        let batch = if round % 20 == 0 { 33 + below(8) } else { 1 + below(7) };
        let queries = (0..batch).map(|b| match below(4) {
            0 => 1,
            1 | 2 => below(6),
            _ if b < 3 => 5 + below(140),
            _ => 5 + below(12),
        });
        let queries: Vec<_> = queries.collect();
        let keys: Vec<_> = queries.iter().map(|n| if below(8) == 0 { 0 } else { n + below(200) }).collect();
        let pages = pair.pages[round % 4];
        let splits = [Splits::Keys(128), Splits::Auto][round % 2];
        let counters = below(2) == 0;
        let case = Case { splits, counters, seed: round as u64, ..case(pair, &queries, &keys, pages) };
        let mixed = bits(&attention, &case, few.contract.symbol);
        let prefill = Case { splits: Splits::Auto, ..case.clone() };
        let prefill = bits(&attention, &prefill, pair.paged);
        for b in (0..batch).filter(|b| queries[*b] > 4) {
            assert_eq!(mixed[b], prefill[b], "{case:?}, sequence {b}");
            compared[0] += 1;
        }
        // A sequence at an even place shares no page with the previous sequence.
        let own = |b: &usize| b.is_multiple_of(2) && (1..=4).contains(&queries[*b]);
        for b in (0..batch).filter(|_| round % 2 == 0).filter(own).take(2) {
            let (seeds, filled) = (vec![case.seeds[b]], vec![case.filled[b]]);
            let alone = Case { seeds, filled, queries: queries[b], varlen_queries: None, ..case.clone() };
            assert_eq!(mixed[b], bits(&attention, &alone, pair.decode)[0], "{case:?}, sequence {b}");
            compared[1] += 1;
        }
    }
    assert!(compared.iter().all(|sequences| *sequences > rounds / 3), "{compared:?}");
}

#[test]
fn garbage_lengths_and_starts() {
    for pair in pairs().into_iter().chain(general()) {
        let [pages @ .., _] = pair.pages;
        for pages in pages {
            check_garbage(|| attention(&pair), pair.few, pages, pair.scored);
        }
    }
}

/// Launches with invalid device data. If a kernel of mixed batches loses any one clamp, at least one of these
/// launches goes wrong. They are the launches for paged kernels, and the launches for decode kernels with few
/// and many sequences.
fn garbage(pair: &Pair) -> Vec<Garbage> {
    const MOST: usize = 300;
    let case = |queries: &[usize], keys: &[usize], pages| case(pair, queries, keys, pages);
    let mut all = garbage_on_pages(Pages::Hnd(5));
    all.retain(|launch| launch.case.varlen_queries.is_some());
    // The last sequence ends before it starts.
    let lost = Garbage { starts: Some(vec![0, 1, 21, 21, 40, 54, 53]), ..all[2].clone() };
    all.push(lost);
    // Below 256 keys, no sequence has splits. Otherwise the device computes their number.
    for (batch, max_k) in [(6, MOST), (42, MOST), (42, 100)] {
        let filled: Vec<usize> = (0..batch).map(|b| if b % 12 == 0 { max_k } else { 50 }).collect();
        let queries: Vec<usize> = (0..batch).map(|b| 3 - b % 3).collect();
        let by_one = ([max_k as i32 + 1, -1, 50, 0], Splits::Auto);
        let by_far = ([i32::MAX, 50, i32::MIN, 50], Splits::Keys(128));
        all.extend([by_one, by_far].map(|(lengths, splits)| {
            let case = case(&queries, &filled, Pages::Dense);
            Garbage {
                case: Case { splits, max_k, heads: [2, 1], ..case },
                lengths: lengths.iter().copied().cycle().take(batch).collect(),
                starts: None,
            }
        }));
        // The rows behind the last sequence belong to no sequence. Even with these rows, the last sequence
        // would have few queries.
        let ends = queries.iter().scan(0, |end, n| {
            *end += *n as i32;
            Some(*end)
        });
        let mut starts: Vec<i32> = std::iter::once(0).chain(ends).collect();
        starts[batch] = i32::MAX;
        let filled = [&filled[1..], &[MOST]].concat();
        let case = Case { splits: Splits::Keys(128), ..case(&queries, &filled, Pages::Nhd(16)) };
        all.push(Garbage { lengths: lengths(&case), case, starts: Some(starts) });
    }
    let case = Case { max_k: MOST, splits: Splits::Keys(128), ..case(&[1], &[20], Pages::Nhd(16)) };
    all.push(Garbage { case, lengths: vec![MOST as i32], starts: None });
    all.iter_mut().for_each(|launch| launch.case.kv_dtype = Some(pair.few.kv_dtype));
    all
}

/// The kernels of a launch of a mixed batch, as subjects of mutation tests.
fn subjects(few: &'static AttnInfo) -> impl Iterator<Item = Subject> {
    let kernels = [Some(few.contract), beside(few).next(), Some(NUMBER_TILES), combine_of(few)];
    let subject = move |kernel: Contract| Subject { kernel, of: few };
    kernels.into_iter().flatten().map(subject)
}

/// The clamps that other clamps make superfluous (`decode.rs` states why).
const SUPERFLUOUS: &[&[&str]] =
    &[&["column.min(cache.columns - 1)"], &["table.rs:0:"], &["max_keys) == 0"], &["order.starts"]];
/// If a sequence ends before it starts, its number of queries is slightly below 2^32, which is not few. LLVM
/// gives one of these maxima the source line of a selection.
const SUPERFLUOUS_IN_FEW: &[&[&str]] =
    &[&["end.max(first)", "becomes operand 2"], &["is_taken { self }", "max.u32"]];
/// A sequence that ends before it starts has no tile.
const SUPERFLUOUS_IN_MANY: &[&[&str]] = &[&["end.max(first)"]];
const SUPERFLUOUS_IN_MERGES: &[&[&str]] =
    &[&["let keys = p.keys(of * 32 + warp.lane()).clamped(order.max_keys)"]];

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    // The caches share the code of the clamps.
    let caches = if is_thorough() { 3 } else { 1 };
    let subjects = |pair: Pair| subjects(pair.few).map(move |own| (pair, own));
    for (pair, subject) in pairs().into_iter().take(caches).flat_map(subjects) {
        let few = pair.few;
        let merges = combine_of(few) == Some(subject.kernel);
        let mut launches = garbage(&pair);
        launches.iter_mut().for_each(|launch| launch.case.counters &= !merges);
        let in_merges = if merges { SUPERFLUOUS_IN_MERGES } else { &[] };
        let own = match subject.kernel {
            NUMBER_TILES => &[],
            kernel if beside(few).any(|many| many == kernel) => SUPERFLUOUS_IN_MANY,
            _ => SUPERFLUOUS_IN_FEW,
        };
        let superfluous = [SUPERFLUOUS, in_merges, own].concat();
        let unnoticed = unnoticed(&subject, &launches, &superfluous);
        assert!(unnoticed.is_empty(), "{}:\n{}", subject.kernel.symbol, unnoticed.join("\n"));
    }
}
