//! Tests of decode kernels on dense and varlen tensors in the simulator, which checks every access, barrier
//! and copy.
use ferroflash::driver::SimDriver;
use ferroflash::{DType, ptx};
use ferroflash_tests::clamps::{FILES, without_each_clamp};
use ferroflash_tests::is_carried;
use ferroflash_tests::known_keys::{KnownKeys, Written};
use ptx_sim::{Completion, Options};
use spec::{Class, Isa, Keys, MaskKind, PageKind};

/// A number of instructions that suffices for every launch. A kernel that takes garbage for a length of
/// billions exceeds this number, and ends.
const BUDGET: u64 = 20_000_000;

fn plain(symbol: &'static str) -> KnownKeys {
    KnownKeys { symbol, batch: 3, shape: [1, 4, 2, 64], max_keys: 70, splits: 1, varlen: None, used: None }
}

/// The launch `of` with varlen K and V of `rows` rows. `starts` contains the start of each sequence, and the
/// end of the last one.
fn varlen(of: &KnownKeys, rows: usize, starts: &[i32]) -> KnownKeys {
    KnownKeys { batch: starts.len() - 1, varlen: Some((rows, starts.to_vec())), ..of.clone() }
}

fn launch(case: &KnownKeys, completion: Completion, ptx: &str) -> Result<Written, String> {
    let options = Options { budget: BUDGET, completion, ..Options::default() };
    let driver = SimDriver::with_options("l4", options).expect("a known card");
    case.run(&driver, ptx).map_err(|error| {
        let reports: Vec<_> = driver.take_reports().iter().map(ToString::to_string).collect();
        format!("{error}\n{}", reports.join("\n"))
    })
}

#[track_caller]
fn check(case: &KnownKeys) {
    let text = ptx::source(case.symbol).expect("this build carries every kernel");
    for completion in [Completion::Late, Completion::Eager] {
        let written = launch(case, completion, &text).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let failures = case.failures(&written);
        assert!(failures.is_empty(), "{case:?}: {}", failures.join("\n"));
    }
}

/// For each mask and kind of pages, one f16 entry of head dim 64.
fn entries() -> impl Iterator<Item = &'static str> {
    [
        (MaskKind::Causal, PageKind::Tiles),
        (MaskKind::Causal, PageKind::Rows),
        (MaskKind::Local, PageKind::Rows),
    ]
    .map(|(mask, pages)| {
        let found = spec::plain(Isa::Sm80, Class::Decode).find(|entry| {
            (entry.dtype, entry.kv_dtype, entry.head_dim) == (DType::F16, DType::F16, 64)
                && (entry.mask, entry.keys) == (mask, Keys::Cache(pages))
                && is_carried(entry.contract.symbol)
        });
        found.expect("a build carries one").contract.symbol
    })
    .into_iter()
}

#[test]
fn dense_keys_whose_lengths_the_host_knows() {
    for symbol in entries() {
        let plain = plain(symbol);
        for (batch, max_keys, splits) in [(1, 300, 0), (3, 70, 1), (3, 160, 3), (40, 33, 0), (40, 17, 2)] {
            check(&KnownKeys { batch, max_keys, splits, ..plain.clone() });
        }
        check(&KnownKeys { shape: [3, 4, 2, 40], max_keys: 50, ..plain });
    }
}

#[test]
fn varlen_keys_of_single_queries() {
    let many: Vec<i32> = (0..=40).scan(0, |at, b| Some(std::mem::replace(at, *at + b * 7 % 30))).collect();
    for symbol in entries() {
        let plain = KnownKeys { max_keys: 120, ..plain(symbol) };
        check(&varlen(&plain, 203, &[0, 70, 70, 83, 203]));
        check(&varlen(&plain, 203, &[0, 70, 70, 83, 203]).splits(3));
        check(&KnownKeys { max_keys: 600, ..varlen(&plain, 600, &[0, 600]).splits(0) });
        check(&varlen(&plain, many[40] as usize, &many));
        let used = Some(vec![70, 3, 0, 121]);
        check(&KnownKeys { used, ..varlen(&plain, 203, &[0, 70, 70, 83, 203]) });
    }
}

/// Launches with garbage in `cu_seqlens_k` and in the numbers of used keys. Every sequence must have the rows
/// that the rule in `lengths.rs` gives it, and the kernel must read nothing outside of its tensors.
fn garbage(symbol: &'static str) -> Vec<KnownKeys> {
    let plain = KnownKeys { max_keys: 120, ..plain(symbol) };
    let starts: [&[i32]; 5] = [
        &[0, 70, 60, 83, 204],
        &[-1, 70, i32::MAX, 83, 203],
        &[i32::MIN, 203, 204, 150, i32::MAX],
        &[202, 203, 0, 203, -5],
        &[190, 230, 10, 90, 91],
    ];
    let mut all: Vec<_> = starts.iter().map(|starts| varlen(&plain, 203, starts)).collect();
    let used = [[-1, 9, i32::MAX, 121], [i32::MIN, 0, 64, 1]];
    all.extend(used.iter().flat_map(|used| {
        starts.iter().map(|starts| KnownKeys { used: Some(used.to_vec()), ..varlen(&plain, 203, starts) })
    }));
    let many: Vec<i32> = (0..=40).map(|b| [-1, 60, 130, 131, 90, 135, i32::MAX][b % 7]).collect();
    all.push(varlen(&plain, 133, &many));
    all
}

#[test]
fn garbage_starts() {
    entries().flat_map(garbage).for_each(|case| check(&case));
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let symbol = entries().next().expect("the table has one");
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let cases = garbage(symbol);
    let right: Vec<_> =
        cases.iter().map(|case| launch(case, Completion::Eager, &text).expect("runs")).collect();
    let mut seen = 0;
    for clamp in without_each_clamp(&text, &FILES) {
        let words = clamp.to_string();
        // `decode.rs` tests the clamps of lengths without starts.
        if !words.contains("order.starts") && !words.contains("Self::within(") {
            continue;
        }
        seen += 1;
        let changes = |(case, right): (&KnownKeys, &Written)| {
            launch(case, Completion::Eager, &clamp.text).as_ref() != Ok(right)
        };
        assert!(cases.iter().zip(&right).any(changes), "{words}");
    }
    assert_eq!(seen, 8, "four clamps make rows of `cu_seqlens_k` and of used keys");
}
