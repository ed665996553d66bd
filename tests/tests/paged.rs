//! Tests prefill on paged caches in the simulator: pages of every size, chunked prefill, and garbage in
//! device memory. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::DType;
use ferroflash::kernels::MaskKind;
use ferroflash::request::{Mask, Splits};
use ferroflash::spec::{AttnInfo, Class, Isa, Precision, plain};
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check, check_garbage};
use ferroflash_tests::{is_carried, is_thorough, simulator_with};
use ptx_sim::Options;
use reference::{Case, Loaded, Pages};

/// The kernels that this build carries, but for those of another precision.
fn kernels() -> impl Iterator<Item = &'static AttnInfo> {
    let is_of_inputs = |e: &&AttnInfo| e.precision() == Precision::Inputs;
    plain(Isa::Sm80, Class::Paged).filter(is_of_inputs).filter(|e| is_carried(e.contract.symbol))
}

/// Tests pages that contain whole tiles, parts of a tile, or several tiles, in any order. Two sequences share
/// their first page. There are more rows than decode kernels take, and the queries are not varlen, so the
/// planner selects the kernel.
#[test]
fn pages_of_every_size() {
    for pages in [Pages::Nhd(1), Pages::Hnd(3), Pages::Nhd(16), Pages::Interleaved(64), Pages::Dense] {
        let case = Case { pages, queries: 33, mask: Mask::Causal, ..Case::new([130, 70, 33, 64]) };
        check(&case, None);
        check(&Case { kv_dtype: Some(DType::E4m3), ..case }, None);
    }
}

/// Tests that a prompt in chunks that begin at tile boundaries gives the same bits as the prompt in one call,
/// with the same memory, the same plan, and other integers on the device.
#[test]
fn chunks_give_the_bits_of_the_whole() {
    let causal = kernels().filter(|e| e.mask == MaskKind::Causal);
    for (entry, pages) in causal.zip([Pages::Nhd(16), Pages::Hnd(5)].into_iter().cycle()) {
        let case = Case { pages, mask: Mask::Causal, splits: Splits::Keys(1024), ..Case::new([300]) };
        let (dtype, head_dim) = (entry.dtype, entry.head_dim as usize);
        let apart = (entry.head_dim != entry.head_dim_v).then_some(entry.head_dim_v as usize);
        let case = Case { dtype, kv_dtype: Some(entry.kv_dtype), head_dim, head_dim_v: apart, ..case };
        let attention = simulator_with(entry, Options::default());
        let memory = case.varlen_queries([300]).memory();
        let mut loaded = Loaded::new(&attention, &memory, None).expect("a plan");
        let (plan, whole) = loaded.launch(None, &[300]).expect("a launch");
        assert_eq!(plan.contract().symbol, entry.contract.symbol);
        let wrong = memory.failures(&whole, &[300]).expect("a case");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (first, end) in [(0, 128), (128, 256), (256, 300)] {
            loaded.start(&[first, end]).expect("as long");
            let (_, chunk) = loaded.launch(Some(&plan), &[end]).expect("a launch");
            let ([chunk, whole], of) =
                ([&chunk, &whole].map(|outcome| outcome.bits(0)), first as usize..end as usize);
            let row = whole.0.len() / 300;
            assert_eq!(chunk.0[of.start * row..of.end * row], whole.0[of.start * row..of.end * row]);
            let lses = chunk.1.chunks(300).zip(whole.1.chunks(300));
            lses.for_each(|(chunk, whole)| assert_eq!(chunk[of.clone()], whole[of.clone()]));
        }
    }
}

#[test]
fn garbage_lengths_and_starts() {
    // The planner would use two kernels for this batch (`mixed.rs`).
    let carried = kernels().filter(|e| e.head_dim == 64);
    // One kernel takes every mask on int8 caches.
    let meant = |e: &&AttnInfo| e.mask == MaskKind::Causal || e.kv_dtype == DType::Int8;
    for entry in carried.filter(|e| e.dtype == DType::F16).filter(meant) {
        for pages in [Pages::Dense, Pages::Nhd(16), Pages::Hnd(5)] {
            check_garbage(|| simulator_with(entry, Options::default()), entry, pages, |case| case);
        }
    }
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let smallest = kernels().filter(|e| e.head_dim == 64);
    // The clamps do not depend on the mask.
    for entry in smallest.filter(|e| e.mask == MaskKind::Causal || is_thorough()) {
        let (symbol, dtypes) = (entry.contract.symbol, (entry.dtype, Some(entry.kv_dtype)));
        let subject = Subject::all().find(|subject| subject.kernel.symbol == symbol).expect("in the table");
        // A column of the block table follows from a clamped length, and the host has checked that the table
        // has pages for this length.
        let superfluous: [&[&str]; 1] = [&["column.min(cache.columns - 1)"]];
        let mut launches = garbage_on_pages(Pages::Hnd(5));
        launches.iter_mut().for_each(|launch| (launch.case.dtype, launch.case.kv_dtype) = dtypes);
        let unnoticed = unnoticed(&subject, &launches, &superfluous);
        assert!(unnoticed.is_empty(), "{symbol}:\n{}", unnoticed.join("\n"));
    }
}
