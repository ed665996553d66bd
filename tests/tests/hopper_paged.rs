//! Many queries on caches in pages by Hopper's copy engine, in the simulator: each kernel on its edges, pages
//! of every size that it takes, and what stands on the device whatever it is.
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::spec::{HOPPERS_PAGED, PagedInfo};
use ferroflash::{Attention, DType};
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check_garbage, check_head_dim, check_on};
use reference::{DecodeCase, Pages};

fn h200() -> Attention<SimDriver> {
    Attention::new(SimDriver::new("h200").expect("a known card"))
}

/// The f16 kernel of head dim 64.
fn smallest() -> &'static PagedInfo {
    let is_it = |e: &&PagedInfo| (e.dtype, e.head_dim) == (DType::F16, 64);
    HOPPERS_PAGED.iter().find(is_it).expect("in the table")
}

#[test]
fn head_dim_64() {
    check_head_dim(h200, HOPPERS_PAGED, 64);
}

#[test]
fn head_dim_128() {
    check_head_dim(h200, HOPPERS_PAGED, 128);
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

#[test]
fn garbage_lengths_starts_and_pages() {
    for pages in [Pages::Dense, Pages::Nhd(16), Pages::Hnd(40)] {
        check_garbage(h200, Some(smallest().contract.symbol), pages);
    }
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let subject = Subject::all().find(|subject| subject.kernel.symbol == smallest().contract.symbol);
    // Of rows behind a sequence's end, too, boxes are begun: a column of the table is clamped by itself.
    let unnoticed = unnoticed(&subject.expect("in the table"), &garbage_on_pages(Pages::Hnd(40)), &[]);
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
