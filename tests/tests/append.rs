//! Appends in the simulator, every access checked, bit by bit against their definition.
use ferroflash::{
    Append, Attention, DType, Driver, Error, KvPages, KvScale, PageView, SimDriver, Slots, TensorView, ptx,
};
use reference::{Random, append};

/// How a cache lies in memory.
#[derive(Clone, Copy, Debug)]
enum Lies {
    Nhd,
    Hnd,
    /// Keys and values in one buffer, heads before the rows of a page or behind.
    Interleaved {
        hnd: bool,
    },
}
use Lies::{Hnd, Interleaved, Nhd};

/// Where scales come from.
#[derive(Clone, Copy, Debug)]
enum Scales {
    One,
    Values(f32, f32),
    /// One a head, in device memory.
    Heads,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    card: &'static str,
    symbol: &'static str,
    dtypes: [DType; 2],
    lies: Lies,
    heads: usize,
    head_dim: usize,
    /// Pages and their size.
    pages: [usize; 2],
    /// Tokens, and rows behind the last.
    tokens: [usize; 2],
    wide: bool,
    scales: Scales,
}

const F16: Case = Case {
    card: "a100",
    symbol: "append_copy",
    dtypes: [DType::F16; 2],
    lies: Nhd,
    heads: 2,
    head_dim: 64,
    pages: [5, 16],
    tokens: [40, 3],
    wide: true,
    scales: Scales::One,
};
const BF16: Case = Case { dtypes: [DType::Bf16; 2], ..F16 };
const E4M3: Case = Case {
    symbol: "append_f16_e4m3",
    dtypes: [DType::F16, DType::E4m3],
    scales: Scales::Values(0.75, 3.0),
    ..F16
};
const ROUNDED: [DType; 2] = [DType::Bf16, DType::E4m3];
const NATIVE: Case = Case { card: "l4", symbol: "append_f16_e4m3_native", ..E4M3 };

#[rustfmt::skip]
const CASES: &[Case] = &[
    F16,
    Case { lies: Hnd, wide: false, ..F16 },
    Case { lies: Interleaved { hnd: false }, pages: [7, 3], tokens: [21, 0], ..F16 },
    Case { lies: Interleaved { hnd: true }, pages: [40, 1], head_dim: 96, ..F16 },
    Case { heads: 1, head_dim: 8, pages: [1, 64], tokens: [1, 0], ..F16 },
    Case { heads: 5, head_dim: 512, pages: [2, 8], tokens: [9, 1], wide: false, ..F16 },
    BF16,
    Case { lies: Hnd, head_dim: 40, heads: 3, ..BF16 },
    E4M3,
    Case { lies: Hnd, scales: Scales::Heads, wide: false, heads: 3, ..E4M3 },
    Case { lies: Interleaved { hnd: false }, scales: Scales::One, head_dim: 16, ..E4M3 },
    Case { scales: Scales::Values(1e-6, 1e6), ..E4M3 },
    Case { symbol: "append_bf16_e4m3", dtypes: ROUNDED, lies: Interleaved { hnd: true }, ..E4M3 },
    NATIVE,
    Case { card: "h200", lies: Hnd, scales: Scales::Heads, heads: 3, head_dim: 48, ..NATIVE },
    Case { scales: Scales::One, tokens: [100, 0], pages: [8, 16], ..NATIVE },
    Case { symbol: "append_bf16_e4m3_native", dtypes: ROUNDED, wide: false, ..NATIVE },
];

/// A device with buffers, filled.
struct Memory<'d> {
    driver: &'d SimDriver,
    buffers: Vec<<SimDriver as Driver>::Buffer>,
}

impl Memory<'_> {
    /// The address of a new buffer with these bytes.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<u64, Error> {
        let mut buffer = self.driver.allocate_named(name, bytes.len())?;
        self.driver.upload(&mut buffer, bytes)?;
        self.buffers.push(buffer);
        Ok(self.driver.address(&self.buffers[self.buffers.len() - 1]))
    }
}

/// Places of all tokens: distinct ones, in any order, and what is none between them.
fn slots(case: &Case, random: &mut Random) -> Vec<i64> {
    let all = (case.pages[0] * case.pages[1]) as i64;
    let mut free: Vec<i64> = (0..all).collect();
    let none = match case.wide {
        true => vec![-1, all, all + 1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 1, -(1 << 32)],
        false => vec![-1, all, all + 1, i64::from(i32::MIN), i64::from(i32::MAX)],
    };
    let mut slot = |_| {
        let bits = random.bits() as usize;
        if free.is_empty() || bits.is_multiple_of(5) {
            return none[bits / 5 % none.len()];
        }
        free.swap_remove(bits / 5 % free.len())
    };
    (0..case.tokens[0]).map(&mut slot).collect()
}

/// Numbers of all sizes, some beyond e4m3's, and some that are none.
fn numbers(case: &Case, random: &mut Random) -> Vec<u16> {
    let count = (case.tokens[0] + case.tokens[1]) * case.heads * case.head_dim;
    let mut numbers = random.normals(case.dtypes[0], count);
    for bits in numbers.iter_mut().skip(1).step_by(3) {
        *bits = random.bits() as u16;
    }
    numbers
}

/// Runs a case with the card's own kernels, or with `ptx` instead of the one that it takes.
fn run(case: &Case, seed: u64, ptx: Option<&str>) -> Result<(), Error> {
    let Case { heads, head_dim, pages: [pages, page], tokens: [tokens, padding], .. } = *case;
    let [dtype, stored] = case.dtypes;
    let attention = Attention::new(SimDriver::new(case.card)?);
    if let Some(ptx) = ptx {
        // SAFETY: the simulator checks what it does.
        unsafe { attention.load_from(case.symbol, ptx)? };
    }
    let driver = attention.driver();
    let (mut memory, mut random) = (Memory { driver, buffers: vec![] }, Random::new(seed));

    let slots = slots(case, &mut random);
    let slot_bytes: Vec<u8> = match case.wide {
        true => slots.iter().flat_map(|slot| slot.to_le_bytes()).collect(),
        false => slots.iter().flat_map(|slot| (*slot as i32).to_le_bytes()).collect(),
    };
    let slots_at = memory.put("slots", &slot_bytes)?;
    let slots_view = if case.wide { Slots::i64 } else { Slots::i32 }(slots_at, tokens as u64);

    let shape = [1, tokens + padding, heads, head_dim];
    let rows = [numbers(case, &mut random), numbers(case, &mut random)];
    let mut tensor = |name, rows: &[u16]| {
        let bytes: Vec<u8> = rows.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        memory.put(name, &bytes).map(|at| TensorView::bshd(at, rows.len() as u64, dtype, shape))
    };
    let [k, v] = [tensor("k", &rows[0])?, tensor("v", &rows[1])?];

    let per_head = |which: usize, head: usize| (head + 1) as f32 * [0.3, 7.0][which];
    let scale = |which: usize, head: usize| match case.scales {
        Scales::One => 1.0,
        Scales::Values(k, v) => [k, v][which],
        Scales::Heads => per_head(which, head),
    };
    let mut scales = [KvScale::One; 2];
    for (which, view) in scales.iter_mut().enumerate() {
        *view = match case.scales {
            Scales::One => KvScale::One,
            Scales::Values(..) => KvScale::Value(scale(which, 0)),
            Scales::Heads => {
                let bytes: Vec<u8> = (0..heads).flat_map(|head| scale(which, head).to_le_bytes()).collect();
                let address = memory.put("scales", &bytes)?;
                KvScale::Device { address, elements: heads as u64, strides: [0, 1] }
            }
        };
    }

    // What no slot names must stay as it is: poisoned.
    let (shape, all) = ([pages, page, heads, head_dim], pages * page * heads * head_dim);
    let (bytes, first) = (all * stored.bytes(), memory.buffers.len());
    let poison = |count: usize| vec![0xa5u8; count];
    let [keys, values] = match case.lies {
        Interleaved { hnd } => {
            let at = memory.put("cache", &poison(2 * bytes))?;
            PageView::interleaved(at, 2 * all as u64, stored, shape, hnd)
        }
        Nhd | Hnd => {
            let view = if matches!(case.lies, Nhd) { PageView::nhd } else { PageView::hnd };
            let [k, v] = [memory.put("keys", &poison(bytes))?, memory.put("values", &poison(bytes))?];
            [k, v].map(|at| view(at, all as u64, stored, shape))
        }
    };
    let count = memory.buffers.len() - first;
    let request = Append::new(k, v, KvPages::new(keys, values).scales(scales[0], scales[1]), slots_view);
    let plan = attention.plan(&request)?;
    assert_eq!(plan.contract().symbol, case.symbol, "{case:?}");
    let stream = driver.stream()?;
    // SAFETY: the buffers live, and nothing else runs.
    unsafe { attention.launch(&plan, &request, &stream)? };
    driver.synchronize(&stream)?;

    let mut caches = vec![poison(bytes * 2 / count); count];
    for (which, (view, rows)) in [keys, values].into_iter().zip(&rows).enumerate() {
        let (cache, skipped) = (which % count, if count == 1 { view.address - keys.address } else { 0 });
        append(&mut caches[cache][skipped as usize..], &view, rows, dtype, &slots, |head| scale(which, head));
    }
    for (buffer, want) in memory.buffers[first..].iter().zip(&caches) {
        let mut got = poison(want.len());
        driver.download(buffer, &mut got)?;
        assert_eq!(&got, want, "{case:?}, seed {seed}");
    }
    Ok(())
}

#[test]
fn every_kernel_layout_and_scale() {
    for (seed, case) in CASES.iter().enumerate() {
        run(case, seed as u64, None).unwrap_or_else(|error| panic!("{case:?}, seed {seed}: {error}"));
    }
    let all: Vec<_> = spec::APPENDS.iter().map(|kernel| kernel.contract.symbol).collect();
    assert!(all.iter().all(|symbol| CASES.iter().any(|case| case.symbol == *symbol)), "{all:?}");
}

#[test]
fn a_slot_that_is_not_skipped_is_reported() {
    let text = ptx::source("append_copy").expect("this build carries it");
    const CLAMP: &str = "setp.ge.u64";
    assert_eq!(text.matches(CLAMP).count(), 1, "the one comparison of 64 bits");
    // One beyond all rows; negative ones.
    for removed in ["setp.gt.u64", "setp.ge.s64"] {
        let report = run(&F16, 1, Some(&text.replace(CLAMP, removed))).expect_err(removed).to_string();
        assert!(report.contains("keys") || report.contains("values"), "{removed}: {report}");
    }
}
