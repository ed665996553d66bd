//! Tests products of e4m3 on KV caches of e4m3 in the simulator: pages of every size, garbage in device
//! memory, and the same bits as on tensors. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::driver::{Harness, SimBuffer, SimDriver};
use ferroflash::request::{
    AttentionRequest, Descales, Index, KvCache, KvPages, KvScale, LseView, Mask, Precision, Scratch,
    TensorView, VarlenKeys, VarlenQueries,
};
use ferroflash::spec::{AttnInfo, MaskKind, lay_of};
use ferroflash::{Attention, DType};
use ferroflash_tests::carried_kernels;
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check_garbage, check_pages, mask_of};
use half::f16;
use ptx_sim::{MmaArch, MmaMode, Options};
use reference::{Case, Memory, Pages};

/// An H200 with two SMs, whose sums of e4m3 are Hopper's.
fn h200() -> Attention<SimDriver> {
    with(Options::default())
}

fn with(options: Options) -> Attention<SimDriver> {
    let options = Options { mma: MmaMode::Exact(MmaArch::Hopper), ..options };
    Attention::new(SimDriver::of_multiprocessors("h200", options, Some(2)).expect("a known card"))
}

/// The f16 kernels of head dim 64, one for each mask, of which a build carries the causal one at least.
fn every_mask() -> Vec<&'static AttnInfo> {
    carried_kernels(|e| e.is_hoppers() && lay_of(e).is_some() && (e.dtype, e.head_dim) == (DType::F16, 64))
}

/// The causal f16 kernel of head dim 64.
fn smallest() -> &'static AttnInfo {
    every_mask().into_iter().find(|e| e.mask == MaskKind::Causal).expect("a build carries one")
}

/// A case with products of e4m3, and a mask of the kernel.
fn fp8(case: Case, entry: &AttnInfo) -> Case {
    Case { kv_dtype: Some(DType::E4m3), precision: Precision::Fp8, mask: mask_of(entry), ..case }
}

#[test]
fn pages_of_every_size() {
    let sizes = [Pages::Nhd(8), Pages::Hnd(24), Pages::Interleaved(32), Pages::Nhd(64), Pages::Nhd(80)];
    let large = [Pages::Hnd(128), Pages::Interleaved(192), Pages::Nhd(256), Pages::Dense, Pages::Rows];
    for entry in every_mask() {
        check_pages(&h200(), entry, &[sizes, large].concat(), |case| fp8(case, entry));
    }
}

/// With invalid starts, the kernels may find other rows of Q in the workspace than those that were rounded.
#[test]
fn garbage_lengths_starts_and_pages() {
    let uninitialised = || with(Options { initcheck: false, ..Options::default() });
    for entry in every_mask() {
        for pages in [Pages::Dense, Pages::Hnd(40)] {
            check_garbage(uninitialised, entry, pages, |case| fp8(case, entry));
        }
    }
}

/// The clamps of the kernel that lays values whose removal changes no result. A negative length would lay
/// values that the attention kernel does not read. Pages of whole octets hold whole octets.
const SUPERFLUOUS: &[&[&str]] = &[&["max.s32", "lengths.rs"], &["min.u32", "page.get() - within"]];

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let lay = lay_of(smallest()).expect("it lays values");
    let subject = |kernel| Subject { kernel, of: smallest() };
    let mut garbage = garbage_on_pages(Pages::Hnd(40));
    garbage.iter_mut().for_each(|launch| launch.case = fp8(launch.case.clone(), smallest()));
    for (kernel, superfluous) in [(lay, SUPERFLUOUS), (smallest().contract, &[])] {
        let unnoticed = unnoticed(&subject(kernel), &garbage, superfluous);
        assert!(unnoticed.is_empty(), "{}: {}", kernel.symbol, unnoticed.join("\n"));
    }
}

/// Padding may be NaN. The kernel that rounds takes it as queries of a sequence without keys.
#[test]
fn nan_in_padding_stays_in_padding() {
    const USED: usize = 20;
    const PADDING: usize = 70;
    let case = fp8(Case { pages: Pages::Nhd(16), heads: [2, 1], ..Case::new([150]) }, smallest());
    let mut memory = case.varlen_queries([USED]).padded([PADDING]).memory();
    let attention = h200();
    let run = |memory: &Memory| ferroflash_tests::run(&attention, smallest().contract.symbol, memory);
    let clean = run(&memory);
    for row in USED..USED + PADDING {
        let at = memory.q.row(2 * row);
        memory.buffers[memory.q.buffer][at..][..2 * D].fill(f16::NAN.to_bits());
    }
    let outcome = run(&memory);
    let (end, all) = (memory.o.row(2 * USED), memory.o.row(2 * (USED + PADDING)));
    assert_eq!(clean.o()[..end], outcome.o()[..end]);
    assert!(clean.o()[..end].iter().any(|bits| *bits != 0));
    assert!(outcome.o()[end..all].iter().all(|bits| *bits == 0));
}

const D: usize = 64;
/// Query heads, and key heads.
const HEADS: [usize; 2] = [4, 2];
const PAGE: usize = 16;
/// Queries and keys of each sequence.
const SEQUENCES: [[usize; 2]; 4] = [[130, 261], [0, 40], [70, 128], [3, 0]];
/// The pages of all sequences, and one that belongs to none.
const PAGES: usize = 17 + 3 + 8 + 1;
/// The longest sequence's pages.
const COLUMNS: usize = 17;

/// The bytes of numbers of e4m3, up to a magnitude of 3.5, of which each row has the largest.
fn numbers(count: usize, seed: usize) -> Vec<u8> {
    // 0x46 is 3.5, and 0x80 is the sign.
    let number = |i: usize| match i % D {
        0 => 0x46,
        _ => ((i + seed).wrapping_mul(0x9e37_79b9) >> 16) as u8 & 0xbf,
    };
    (0..count).map(number).collect()
}

/// The f16 with the value of an e4m3, times two to the power of `exponent`.
fn half_of(byte: u8) -> u16 {
    let [sign, exponent, fraction] = [byte >> 7, byte >> 3 & 15, byte & 7].map(i32::from);
    let magnitude = match exponent {
        0 => f64::from(fraction) * 2f64.powi(-9),
        _ => f64::from(8 + fraction) * 2f64.powi(exponent - 10),
    };
    f16::from_f64(if sign == 1 { -magnitude } else { magnitude }).to_bits()
}

/// The e4m3 that has 128 times the value.
fn times_128(byte: u8) -> u8 {
    match byte >> 3 & 15 {
        0 => {
            // A subnormal number: fraction x 2^-9 x 2^7.
            let value = f64::from(byte & 7) * 0.25;
            let code = (0..0x7f).find(|code| f16::from_f64(value).to_bits() == half_of(*code));
            byte & 0x80 | code.expect("an e4m3")
        }
        _ => byte + (7 << 3),
    }
}

/// A buffer that holds these bytes.
fn buffer(driver: &SimDriver, name: &'static str, bytes: &[u8]) -> SimBuffer {
    let mut buffer = driver.allocate_named(name, bytes.len()).expect("room");
    driver.upload(&mut buffer, bytes).expect("as long");
    buffer
}

/// Runs a request, and returns the bytes of O and the LSE.
fn run(attention: &Attention<SimDriver>, make: impl Fn(TensorView) -> AttentionRequest<'static>) -> Vec<u8> {
    let (driver, rows) = (attention.driver(), SEQUENCES.map(|[queries, _]| queries).iter().sum::<usize>());
    let [elements, values] = [rows * HEADS[0] * D, rows * HEADS[0]];
    let o = buffer(driver, "o", &vec![0xff; 2 * elements]);
    let lse = buffer(driver, "lse", &vec![0xff; 4 * values]);
    let view = TensorView::bshd(driver.address(&o), elements as u64, DType::F16, [1, rows, HEADS[0], D]);
    let of_rows = LseView::contiguous(driver.address(&lse), values as u64, [1, HEADS[0], rows]);
    let request = make(view).mask(Mask::Causal).lse(of_rows);
    let plan = attention.plan(&request.scratch(Scratch::Fastest)).expect("valid");
    let bytes = plan.scratch_bytes().workspace;
    let workspace = driver.allocate_named("workspace", bytes as usize).expect("room");
    let request = request.scratch(Scratch::workspace(driver.address(&workspace), bytes));
    let stream = driver.stream().expect("a stream");
    // SAFETY: the buffers are as large as the views state, and the simulator checks each access.
    unsafe { attention.launch(&plan, &request, &stream) }.expect("runs");
    let read = |buffer: &SimBuffer, count: usize| {
        let mut bytes = vec![0; count];
        driver.download(buffer, &mut bytes).expect("as long");
        bytes
    };
    [read(&o, 2 * elements), read(&lse, 4 * values)].concat()
}

/// Queries whose rounding is exact, on pages and on tensors that hold the same keys and values.
#[test]
fn pages_have_the_bits_of_tensors() {
    let attention = h200();
    let driver = attention.driver();
    let [rows, keys] = [0, 1].map(|which| SEQUENCES.map(|all| all[which]).iter().sum::<usize>());
    let starts = |which: usize| {
        let ends = SEQUENCES.iter().scan(0, |end, all| {
            *end += all[which] as i32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).flat_map(i32::to_ne_bytes).collect::<Vec<_>>()
    };
    let [cu_q, cu_k] = [0, 1].map(|which| buffer(driver, "starts", &starts(which)));
    let lengths = SEQUENCES.iter().flat_map(|[_, keys]| (*keys as i32).to_ne_bytes());
    let lengths = buffer(driver, "lengths", &lengths.collect::<Vec<_>>());
    let q = numbers(rows * HEADS[0] * D, 1);
    let [k, v] = [2, 3].map(|seed| numbers(keys * HEADS[1] * D, seed));

    // Pages in descending order; entries behind a sequence's last page are invalid.
    let mut table = vec![-1_i32; SEQUENCES.len() * COLUMNS];
    let (mut next, mut first) = (PAGES as i32 - 1, 0);
    let (row, mut pages) = (HEADS[1] * D, [0, 1].map(|_| vec![0x7f_u8; PAGES * PAGE * HEADS[1] * D]));
    for (b, [_, count]) in SEQUENCES.iter().enumerate() {
        for i in 0..*count {
            if i % PAGE == 0 {
                table[b * COLUMNS + i / PAGE] = next;
                next -= 1;
            }
            let at = (table[b * COLUMNS + i / PAGE] as usize * PAGE + i % PAGE) * row;
            for (pages, from) in pages.iter_mut().zip([&k, &v]) {
                pages[at..][..row].copy_from_slice(&from[(first + i) * row..][..row]);
            }
        }
        first += count;
    }
    let table = buffer(driver, "table", &table.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>());
    let [pages_k, pages_v] = pages.each_ref().map(|bytes| buffer(driver, "cache", bytes));
    let halves = buffer(driver, "q", &q.iter().flat_map(|x| half_of(*x).to_ne_bytes()).collect::<Vec<_>>());
    let bytes = buffer(driver, "q", &q.iter().map(|x| times_128(*x)).collect::<Vec<_>>());
    let [k, v] = [&k, &v].map(|bytes| buffer(driver, "kv", bytes));

    let view = |buffer: &SimBuffer, dtype, shape: [usize; 4]| {
        TensorView::bshd(driver.address(buffer), shape.iter().product::<usize>() as u64, dtype, shape)
    };
    let index = |buffer: &SimBuffer, count: usize| Index::new(driver.address(buffer), count as u64);
    let (count, shape) = (SEQUENCES.len(), [1, rows, HEADS[0], D]);
    let queries = VarlenQueries::new(count, index(&cu_q, count + 1), 130);
    let scales = [KvScale::Value(0.75), KvScale::Value(1.5)];
    let on_pages = run(&attention, |o| {
        let [k, v] = [&pages_k, &pages_v].map(|buffer| view(buffer, DType::E4m3, [PAGES, PAGE, HEADS[1], D]));
        let pages = KvPages::new(k, v).scales(scales[0], scales[1]);
        let entries = index(&table, count * COLUMNS);
        let kv = KvCache::paged(pages, entries, COLUMNS, index(&lengths, count)).max_k(261);
        let mut request = AttentionRequest::cached(view(&halves, DType::F16, shape), kv, o);
        request.queries = ferroflash::request::Queries::Varlen(queries);
        request.precision(Precision::Fp8)
    });
    let on_tensors = run(&attention, |o| {
        let [k, v] = [&k, &v].map(|buffer| view(buffer, DType::E4m3, [1, keys, HEADS[1], D]));
        let keys = VarlenKeys::new(index(&cu_k, count + 1), 261);
        let q = view(&bytes, DType::E4m3, shape);
        let descales = Descales::new(KvScale::Value(1.0 / 128.0), scales[0], scales[1]);
        AttentionRequest::varlen(q, k, v, o, queries, keys).descales(descales)
    });
    assert!(on_pages == on_tensors, "O or LSE");
    let zeros = on_pages.iter().filter(|byte| **byte == 0).count();
    assert!(zeros < on_pages.len() / 2, "{zeros} bytes of {} are 0", on_pages.len());
}
