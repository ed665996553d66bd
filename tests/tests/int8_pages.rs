//! Tests products of int8 and e4m3 on KV caches of int8 in the simulator: pages of every size, garbage in
//! device memory. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::driver::SimDriver;
use ferroflash::request::Precision;
use ferroflash::spec::{AttnInfo, lay_of};
use ferroflash::{Attention, DType};
use ferroflash_tests::carried_kernels;
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check_garbage, check_pages, mask_of};
use ptx_sim::Options;
use reference::{Case, Pages};

/// An L4 with two SMs.
fn l4() -> Attention<SimDriver> {
    with(Options::default())
}

fn with(options: Options) -> Attention<SimDriver> {
    Attention::new(SimDriver::of_multiprocessors("l4", options, Some(2)).expect("a known card"))
}

/// The f16 kernels of head dim 64, one for each mask.
fn smallest() -> impl Iterator<Item = &'static AttnInfo> {
    let kind = (DType::F16, DType::Int8, 64);
    let all = carried_kernels(|e| (e.dtype, e.kv_dtype, e.head_dim) == kind && lay_of(e).is_some());
    all.into_iter()
}

/// A case with products of int8 and e4m3, and a mask of the kernel.
fn int8(case: Case, entry: &AttnInfo) -> Case {
    Case { kv_dtype: Some(DType::Int8), precision: Precision::Int8Fp8, mask: mask_of(entry), ..case }
}

#[test]
fn pages_of_every_size() {
    let sizes = [Pages::Nhd(1), Pages::Hnd(3), Pages::Interleaved(7), Pages::Nhd(16), Pages::Nhd(80)];
    let large = [Pages::Hnd(128), Pages::Interleaved(192), Pages::Nhd(256), Pages::Dense, Pages::Rows];
    for entry in smallest() {
        check_pages(&l4(), entry, &[sizes, large].concat(), |case| int8(case, entry));
    }
}

#[test]
fn garbage_lengths_starts_and_pages() {
    for (entry, pages) in smallest().zip([Pages::Dense, Pages::Hnd(5)]) {
        check_garbage(l4, entry, pages, |case| int8(case, entry));
    }
}

/// The clamps of the kernel that rounds values whose removal changes no result: a negative length would round
/// values that the attention kernel does not read.
const SUPERFLUOUS: &[&[&str]] = &[&["max.s32", "lengths.rs"]];

/// As above, of the attention kernel: a column of the block table follows from a clamped length, and the host
/// has checked that the table has pages for this length.
const AHEAD: &[&[&str]] = &[&["column.min(cache.columns - 1)"]];

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let of = smallest().next().expect("a kernel");
    let lay = lay_of(of).expect("it rounds values");
    let subject = |kernel| Subject { kernel, of };
    let mut garbage = garbage_on_pages(Pages::Hnd(5));
    garbage.iter_mut().for_each(|launch| launch.case = int8(launch.case.clone(), of));
    for (kernel, superfluous) in [(lay, SUPERFLUOUS), (of.contract, AHEAD)] {
        let unnoticed = unnoticed(&subject(kernel), &garbage, superfluous);
        assert!(unnoticed.is_empty(), "{}: {}", kernel.symbol, unnoticed.join("\n"));
    }
}
