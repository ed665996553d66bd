//! Many queries on caches in pages by Hopper's copy engine, in the simulator: each kernel on its edges, pages
//! of every size that it takes, and what stands on the device whatever it is.
use ferroflash::spec::{HOPPERS_PAGED, PagedInfo};
use ferroflash::{Attention, DType, Mask, SimDriver};
use ferroflash_tests::on_cache::{check_lengths_on, check_on};
use ptx_sim::Kind;
use reference::{DecodeCase, DecodeMemory, LoadedDecode, Pages, paged_edges};

fn h200() -> Attention<SimDriver> {
    Attention::new(SimDriver::new("h200").expect("a known card"))
}

/// The f16 kernel of head dim 64.
fn smallest() -> &'static PagedInfo {
    let is_it = |e: &&PagedInfo| (e.dtype, e.head_dim) == (DType::F16, 64);
    HOPPERS_PAGED.iter().find(is_it).expect("in the table")
}

#[track_caller]
fn check_head_dim(head_dim: u32) {
    let entries: Vec<_> = HOPPERS_PAGED.iter().filter(|entry| entry.head_dim == head_dim).collect();
    assert!(!entries.is_empty(), "the table has head dim {head_dim}");
    for entry in entries {
        for case in paged_edges(entry) {
            check_on(&h200(), &case, Some(entry.contract.symbol));
        }
    }
}

#[test]
fn head_dim_64() {
    check_head_dim(64);
}

#[test]
fn head_dim_128() {
    check_head_dim(128);
}

#[test]
fn every_head_dim_of_the_table_is_tested_here() {
    assert!(HOPPERS_PAGED.iter().all(|entry| [64, 128].contains(&entry.head_dim)));
}

/// Boxes of a part of a page, of all of it, of several stages' worth; pages that two sequences share, and
/// sequences that end in the middle of a page, of a box, of a stage, or with one.
#[test]
fn pages_of_every_size() {
    let (symbol, lengths) = (smallest().contract.symbol, [261, 130, 256, 0, 37, 128]);
    let sizes = [Pages::Nhd(8), Pages::Hnd(24), Pages::Interleaved(32), Pages::Nhd(64), Pages::Nhd(80)];
    let large = [Pages::Hnd(128), Pages::Interleaved(192), Pages::Nhd(256), Pages::Dense, Pages::Rows];
    for (turn, pages) in sizes.into_iter().chain(large).enumerate() {
        let case = DecodeCase { pages, mask: Mask::Causal, ..DecodeCase::new(lengths) };
        // Packed, and as many queries of each sequence.
        let case = match turn % 2 {
            0 => case.packed([1, 130, 20, 3, 0, 12]),
            _ => DecodeCase { queries: 9, ..case },
        };
        check_on(&h200(), &case, Some(symbol));
    }
}

/// A plan knows bounds only: lengths, starts and pages that make no sense touch nothing outside of the
/// tensors. What is judged are sequences whose lengths, clamped, the cache has.
#[test]
fn garbage_lengths_starts_and_pages() {
    let (most, config) = (120, Some(smallest().contract.symbol));
    let garbage = [i32::MAX, -1, 51, i32::MIN, 0, 50, most as i32 + 1, 1, i32::MIN + 1];
    for pages in [Pages::Dense, Pages::Nhd(16), Pages::Hnd(40)] {
        let filled: Vec<usize> = (0..6).map(|b| if b % 3 == 0 { most } else { 50 }).collect();
        let case = DecodeCase { pages, max_k: most, ..DecodeCase::new(filled) }.packed([1, 20, 0, 33, 2, 17]);
        let lengths = |turn: usize| (0..6).map(|b| garbage[(b + turn) % garbage.len()]).collect::<Vec<_>>();
        check_lengths_on(&h200(), &case, config, &[lengths(0), lengths(4)]);
        let (attention, memory) = (h200(), DecodeMemory::new(&case));
        let mut loaded = LoadedDecode::new(&attention, &memory, config).expect("a plan");
        for turn in 0..garbage.len() {
            let starts: Vec<i32> = (0..7).map(|b| garbage[(2 * b + turn) % garbage.len()]).collect();
            loaded.start(&starts).expect("as long");
            let launched = loaded.run(None, &lengths(turn));
            // Sequences that overlap write the same rows.
            let mut reports = attention.driver().take_reports();
            reports.retain(|report| report.kind != Kind::GlobalRace);
            assert!(reports.is_empty(), "{starts:?}: {:?} {reports:?}", launched.err());
        }
    }
}
