//! Tests shared prefixes in the simulator: groups of every kind, empty rests, other lengths under one plan,
//! invalid integers, and planted errors.
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use ferroflash_tests::on_cache::attention;
use ptx_sim::Kind;
use reference::{DecodeCase, DecodeMemory, LoadedDecode, OnDevice, Pages, Rule, Shared, Told, Work};

const PAGES: Pages = Pages::Nhd(16);

/// A case of groups, each with its number of sequences and of shared pages. Sequence `i` of a group has
/// `rests[i % rests.len()]` keys behind the prefix.
fn case(groups: &[[usize; 2]], rests: &[usize], pages: Pages) -> DecodeCase {
    let page = match pages {
        Pages::Nhd(page) | Pages::Hnd(page) | Pages::Interleaved(page) => page,
        Pages::Dense | Pages::DenseHnd | Pages::Rows => panic!("sequences share pages"),
    };
    let filled = groups.iter().flat_map(|[count, shared]| {
        (0..*count).map(move |i| shared * page + rests[i % rests.len()]).collect::<Vec<_>>()
    });
    let filled: Vec<_> = filled.collect();
    let max_k = filled.iter().max().copied().unwrap_or(1) + page;
    DecodeCase { pages, max_k, shared: Some(Shared::new(groups)), ..DecodeCase::new(filled) }
}

fn lengths(case: &DecodeCase) -> Vec<i32> {
    case.filled.iter().map(|keys| *keys as i32).collect()
}

/// Launches a case, and returns the failures. The launch must make two passes.
fn failures(attention: &Attention<SimDriver>, case: &DecodeCase, memory: &DecodeMemory) -> Vec<String> {
    let mut loaded = LoadedDecode::new(attention, memory, None).expect("a plan");
    let (plan, outcome) = loaded.run(None, &lengths(case)).unwrap_or_else(|error| {
        let reports: Vec<_> = attention.driver().take_reports();
        panic!("{case:?}: {error}\n{}", reports.iter().map(|r| r.to_string()).collect::<String>())
    });
    assert!(plan.reason().contains("share prefixes"), "{case:?}: {}", plan.reason());
    memory.judge(&outcome, &lengths(case)).expect("a case")
}

#[track_caller]
fn check(case: &DecodeCase) {
    let wrong = failures(&attention(), case, &DecodeMemory::new(case));
    assert!(wrong.is_empty(), "{case:?}: {}", wrong.join("\n"));
}

/// Groups of 1, 2 and 5 sequences, prefixes of one page and of several pages, empty rests, and rests that end
/// within a page.
#[test]
fn groups_of_every_kind() {
    let groups: [&[[usize; 2]]; 6] =
        [&[[1, 1]], &[[2, 1]], &[[5, 3]], &[[2, 4], [2, 4]], &[[1, 1], [2, 3], [5, 2]], &[[2, 0], [3, 20]]];
    for groups in groups {
        for rests in [&[0][..], &[1, 0, 40], &[17]] {
            for (pages, counters) in [(PAGES, true), (Pages::Hnd(24), false), (Pages::Interleaved(5), true)] {
                check(&DecodeCase { counters, ..case(groups, rests, pages) });
            }
        }
    }
}

/// Query heads per key head, queries per sequence, masks, scores and dtypes. Under a causal mask, a sequence
/// has at least the keys of all but one of its queries behind its prefix.
#[test]
fn queries_heads_and_scores() {
    let plain = |groups: &[[usize; 2]]| case(groups, &[3, 20, 9], PAGES);
    for heads in [[2, 2], [4, 1], [8, 1]] {
        for (queries, mask) in [(1, Mask::Causal), (2, Mask::Full), (3, Mask::Causal), (4, Mask::Causal)] {
            for groups in [&[[4, 6]][..], &[[2, 3], [2, 3]], &[[3, 2], [1, 5]]] {
                check(&DecodeCase { heads, queries, mask, ..plain(groups) });
            }
        }
    }
    let of = plain(&[[3, 4]]);
    check(&DecodeCase { sinks: true, ..of.clone() });
    check(&DecodeCase { softcap: Some(20.0), mask: Mask::Causal, ..of.clone() });
    check(&DecodeCase { cache: DType::E4m3, ..of.clone() });
    check(&DecodeCase { scale: Some(0.3), counters: false, ..of });
    check(&DecodeCase { sinks: true, ..plain(&[[3, 2], [1, 5]]) });
}
