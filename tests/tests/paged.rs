//! Many queries on caches in pages, in the simulator, every access, barrier and copy checked: each paged
//! kernel on its edges, and what stands on the device whatever it is.
use ferroflash::DType;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::PAGED;
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{attention, check, check_garbage, check_head_dim};
use reference::{DecodeCase, DecodeMemory, LoadedDecode, Pages};

#[test]
fn head_dim_64() {
    check_head_dim(attention, PAGED, 64);
}

#[test]
fn head_dim_128() {
    check_head_dim(attention, PAGED, 128);
}

#[test]
fn head_dim_256() {
    check_head_dim(attention, PAGED, 256);
}

#[test]
fn head_dim_512() {
    check_head_dim(attention, PAGED, 512);
}

#[test]
fn every_head_dim_of_the_table_is_tested_here() {
    assert!(PAGED.iter().all(|entry| [64, 128, 256, 512].contains(&entry.head_dim)));
}

/// Whatever a page holds, and in whichever order: whole tiles, parts of one, several tiles; first pages that
/// two sequences share. More rows than decode kernels take, without packing: the planner's own choice.
#[test]
fn pages_of_every_size() {
    for pages in [Pages::Nhd(1), Pages::Hnd(3), Pages::Nhd(16), Pages::Interleaved(64), Pages::Dense] {
        let case =
            DecodeCase { pages, queries: 33, mask: Mask::Causal, ..DecodeCase::new([130, 70, 33, 64]) };
        check(&case, None);
    }
}

/// A prompt in chunks that begin where tiles do gives the bits of the prompt at once: one memory, one plan,
/// other numbers on the device.
#[test]
fn chunks_give_the_bits_of_the_whole() {
    for (dtype, pages) in [(DType::F16, Pages::Nhd(16)), (DType::Bf16, Pages::Hnd(5))] {
        let case = DecodeCase { pages, mask: Mask::Causal, splits: Splits::CHUNK, ..DecodeCase::new([300]) };
        let case = DecodeCase { dtype, cache: dtype, ..case };
        let (attention, memory) = (attention(), DecodeMemory::new(&case.packed([300])));
        let mut loaded = LoadedDecode::new(&attention, &memory, None).expect("a plan");
        let (plan, whole) = loaded.run(None, &[300]).expect("a launch");
        assert!(plan.contract().symbol.starts_with("paged_"), "{}", plan.contract().symbol);
        let wrong = memory.judge(&whole, &[300]).expect("a case");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (first, end) in [(0, 128), (128, 256), (256, 300)] {
            loaded.start(&[first, end]).expect("as long");
            let (_, chunk) = loaded.run(Some(&plan), &[end]).expect("a launch");
            let (row, of) = (whole.o(0).len() / 300, first as usize..end as usize);
            assert_eq!(chunk.o(0)[of.start * row..of.end * row], whole.o(0)[of.start * row..of.end * row]);
            let lses = chunk.bits(0).1.chunks(300).zip(whole.bits(0).1.chunks(300));
            lses.for_each(|(chunk, whole)| assert_eq!(chunk[of.clone()], whole[of.clone()]));
        }
    }
}

#[test]
fn garbage_lengths_and_starts() {
    for pages in [Pages::Dense, Pages::Nhd(16), Pages::Hnd(5)] {
        check_garbage(attention, None, pages);
    }
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    for symbol in ["paged_f16_d64_causal_128x64", "paged_f16_d64_local_128x64"] {
        let subject = Subject::all().find(|subject| subject.kernel.symbol == symbol).expect("in the table");
        // A column of the table follows from a length that has been clamped, to no more keys than the table
        // has pages for (the host has checked).
        let superfluous: [&[&str]; 1] = [&["column.min(cache.columns - 1)"]];
        let unnoticed = unnoticed(&subject, &garbage_on_pages(Pages::Hnd(5)), &superfluous);
        assert!(unnoticed.is_empty(), "{symbol}:\n{}", unnoticed.join("\n"));
    }
}
