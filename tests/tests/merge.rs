//! Merges in the simulator, every access checked, against f64.
use ferroflash::{
    Attention, DType, Driver, Error, LseUnit, LseView, Merge, SimDriver, Sinks, State, TensorView, ptx,
};
use half::{bf16, f16};
use reference::{Random, merge};

/// How states lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// Each by itself: O `[batch, seqlen, heads, head_dim]`, log-sum-exps `[batch, heads, seqlen]`.
    Apart,
    /// Side by side in a row, as FlashInfer has them: `[rows, states, heads, head_dim]` and `[rows, states,
    /// heads]`.
    SideBySide,
}
use Lie::{Apart, SideBySide};

#[derive(Clone, Copy, Debug)]
struct Case {
    symbol: &'static str,
    /// Of the states, and of the result.
    dtypes: [DType; 2],
    /// `[batch, seqlen, heads, head_dim]`.
    shape: [usize; 4],
    states: usize,
    lie: Lie,
    /// Logarithms of the states, and of the result.
    units: [LseUnit; 2],
    sinks: bool,
    /// Which state's place is the result's.
    place_of: Option<usize>,
}

const F16: Case = Case {
    symbol: "merge_f16",
    dtypes: [DType::F16; 2],
    shape: [2, 17, 3, 64],
    states: 2,
    lie: Apart,
    units: [LseUnit::Natural; 2],
    sinks: false,
    place_of: None,
};
const BF16: Case = Case { symbol: "merge_bf16", dtypes: [DType::Bf16; 2], ..F16 };
const F32: Case = Case { symbol: "merge_f32", dtypes: [DType::F32; 2], ..F16 };
const TWO: LseUnit = LseUnit::Two;

#[rustfmt::skip]
const CASES: &[Case] = &[
    F16,
    Case { states: 1, sinks: true, ..F16 },
    Case { states: 3, shape: [1, 33, 4, 96], sinks: true, ..F16 },
    Case { states: 9, lie: SideBySide, shape: [1, 21, 2, 128], units: [TWO; 2], ..F16 },
    Case { place_of: Some(0), shape: [1, 40, 5, 24], ..F16 },
    Case { place_of: Some(1), lie: SideBySide, states: 4, units: [TWO; 2], shape: [1, 7, 3, 512], ..F16 },
    Case { shape: [1, 1, 1, 8], ..F16 },
    BF16,
    Case { states: 6, units: [TWO, LseUnit::Natural], sinks: true, shape: [3, 5, 2, 256], ..BF16 },
    Case { place_of: Some(0), sinks: true, shape: [1, 19, 1, 72], ..BF16 },
    F32,
    Case { place_of: Some(2), states: 3, units: [LseUnit::Natural, TWO], ..F32 },
    Case { states: 5, lie: SideBySide, shape: [1, 30, 2, 40], place_of: Some(3), ..F32 },
    Case { symbol: "merge_f32_f16", dtypes: [DType::F32, DType::F16], states: 8, sinks: true, ..F16 },
    Case { symbol: "merge_f32_bf16", dtypes: [DType::F32, DType::Bf16], shape: [1, 9, 2, 128], ..F16 },
];

/// Bytes of a number.
fn bytes(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(x).to_le_bytes().into(),
        DType::Bf16 => bf16::from_f64(x).to_le_bytes().into(),
        _ => (x as f32).to_le_bytes().into(),
    }
}

/// The number of bytes.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match *bytes {
        [a, b] if dtype == DType::F16 => f16::from_le_bytes([a, b]).to_f64(),
        [a, b] => bf16::from_le_bytes([a, b]).to_f64(),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        _ => panic!("{} bytes", bytes.len()),
    }
}

/// Numbers in a view's places, in a buffer of bytes that begins at its address.
fn fill(buffer: &mut [u8], strides: [i64; 4], shape: [usize; 4], dtype: DType, numbers: &[f64]) {
    for (place, x) in places(strides, shape).zip(numbers) {
        buffer[place * dtype.bytes()..][..dtype.bytes()].copy_from_slice(&bytes(dtype, *x));
    }
}

/// Elements from the first, index by index.
fn places(strides: [i64; 4], shape: [usize; 4]) -> impl Iterator<Item = usize> {
    (0..shape.iter().product()).map(move |index: usize| {
        let (mut left, mut at) = (index, 0);
        for (extent, stride) in shape.into_iter().zip(strides).rev() {
            at += left % extent * stride as usize;
            left /= extent;
        }
        at
    })
}

/// States, each with its numbers: O row by row, head by head, and log-sum-exps likewise, natural.
fn states(case: &Case, random: &mut Random) -> Vec<Vec<(Vec<f64>, f64)>> {
    let [batch, rows, heads, head_dim] = case.shape;
    let mut state = |_| {
        let row = |i: usize| {
            let bits = random.bits();
            // A tenth has seen no key, each in its way, and every 13th row of none of the states.
            let empty = bits.is_multiple_of(10) || i % 13 == 5;
            let lse = match (empty, bits / 10 % 2) {
                (true, 0) => f64::NEG_INFINITY,
                (true, _) => f64::INFINITY,
                (false, _) => f64::from((random.normal() * 6.0) as f32),
            };
            let number = |_| {
                let x = number(case.dtypes[0], &bytes(case.dtypes[0], random.normal()));
                if empty { f64::NAN } else { x }
            };
            ((0..head_dim).map(number).collect(), lse)
        };
        (0..batch * rows * heads).map(row).collect()
    };
    (0..case.states).map(&mut state).collect()
}

/// Runs a case with the kernel that this build carries, or with `ptx` instead.
fn run(case: &Case, seed: u64, ptx: Option<&str>) -> Result<(), Error> {
    let Case { shape, dtypes: [dtype, output], states: count, .. } = *case;
    let [batch, rows, heads, head_dim] = shape;
    let attention = Attention::new(SimDriver::new("a100")?);
    if let Some(ptx) = ptx {
        // SAFETY: the simulator checks what it does.
        unsafe { attention.load_from(case.symbol, ptx)? };
    }
    let (driver, mut random) = (attention.driver(), Random::new(seed));
    let numbers = states(case, &mut random);
    // In one buffer each: all O and all log-sum-exps, state by state or side by side.
    let (size, values) = (batch * rows * heads * head_dim, batch * rows * heads);
    let side = if case.lie == SideBySide { count } else { 1 };
    let dim = |n: usize| n as i64;
    let o_strides = [dim(side * rows * heads * head_dim), dim(side * heads * head_dim), dim(head_dim), 1];
    // As `[batch, seqlen, heads, 1]`.
    let lse_strides = match case.lie {
        Apart => [dim(heads * rows), 1, dim(rows), 1],
        SideBySide => [dim(side * rows * heads), dim(side * heads), 1, 1],
    };
    let first = |state: usize| match case.lie {
        Apart => [state * size, state * values],
        SideBySide => [state * heads * head_dim, state * heads],
    };
    let factor = |unit| if unit == LseUnit::Two { std::f64::consts::LOG2_E } else { 1.0 };
    let (mut all_o, mut all_lse) = (vec![0xa5; count * size * dtype.bytes()], vec![0xa5; count * values * 4]);
    for (i, state) in numbers.iter().enumerate() {
        let [o, lse] = first(i);
        let flat: Vec<f64> = state.iter().flat_map(|(o, _)| o.iter().copied()).collect();
        fill(&mut all_o[o * dtype.bytes()..], o_strides, shape, dtype, &flat);
        let flat: Vec<f64> = state.iter().map(|(_, lse)| lse * factor(case.units[0])).collect();
        fill(&mut all_lse[lse * 4..], lse_strides, [batch, rows, heads, 1], DType::F32, &flat);
    }
    let put = |name: &str, bytes: &[u8]| {
        let mut buffer = driver.allocate_named(name, bytes.len())?;
        driver.upload(&mut buffer, bytes)?;
        Ok::<_, Error>((driver.address(&buffer), buffer))
    };
    let ((o_at, o_buffer), (lse_at, lse_buffer)) = (put("states", &all_o)?, put("lses", &all_lse)?);
    let poison = |bytes: usize| vec![0xa5u8; bytes];
    let (out_at, out_buffer) = put("o", &poison(size * output.bytes()))?;
    let (out_lse_at, out_lse_buffer) = put("lse", &poison(values * 4))?;
    let logits: Vec<f32> = (0..heads).map(|head| random.normal() as f32 * 4.0 + head as f32).collect();
    let sinks: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (sinks_at, _sinks) = put("sinks", &sinks)?;

    let lse_view = |at: u64, elements: usize, [batch_stride, row, head, _]: [i64; 4], unit| {
        LseView::new(at, elements as u64, [batch, heads, rows], [batch_stride, head])
            .rows_apart(row)
            .unit(unit)
    };
    let list: Vec<State> = (0..count)
        .map(|i| {
            let [o, lse] = first(i);
            let at = o_at + (o * dtype.bytes()) as u64;
            let o = TensorView::new(at, (count * size - o) as u64, dtype, shape, o_strides);
            let lse_elements = count * values - lse;
            State::new(o, lse_view(lse_at + lse as u64 * 4, lse_elements, lse_strides, case.units[0]))
        })
        .collect();
    let (o, lse) = match case.place_of {
        Some(i) => (list[i].o, list[i].lse.unit(case.units[1])),
        None => {
            let strides = [dim(heads * rows), 1, dim(rows), 1];
            let o = TensorView::bshd(out_at, size as u64, output, shape);
            (o, lse_view(out_lse_at, values, strides, case.units[1]))
        }
    };
    let mut request = Merge::new(&list, o).lse(lse);
    if case.sinks {
        request = request.sinks(Sinks { address: sinks_at, elements: heads as u64 });
    }
    let plan = attention.plan(&request)?;
    assert_eq!(plan.contract().symbol, case.symbol, "{case:?}");
    let stream = driver.stream()?;
    // SAFETY: the buffers live, and nothing else runs.
    unsafe { attention.launch(&plan, &request, &stream)? };
    driver.synchronize(&stream)?;

    let in_place = case.place_of.is_some();
    let read = |buffer, skipped: usize, bytes: usize| {
        let mut all = poison(skipped + bytes);
        driver.download(buffer, &mut all).map(|()| all.split_off(skipped))
    };
    let [o_first, lse_first] = case.place_of.map_or([0; 2], first);
    let got_o = match in_place {
        true => read(&o_buffer, o_first * dtype.bytes(), all_o.len() - o_first * dtype.bytes())?,
        false => read(&out_buffer, 0, size * output.bytes())?,
    };
    let got_lse = match in_place {
        true => read(&lse_buffer, lse_first * 4, all_lse.len() - lse_first * 4)?,
        false => read(&out_lse_buffer, 0, values * 4)?,
    };
    let at = |bytes: &[u8], dtype: DType, place: usize| {
        number(dtype, &bytes[place * dtype.bytes()..][..dtype.bytes()])
    };
    let lse_places = [lse.strides[0], lse.row_stride, lse.strides[1], 1];
    let lses = places(lse_places, [batch, rows, heads, 1]);
    let columns: Vec<usize> = places(o.strides, shape).collect();
    // Half of an ulp of the result, and a few of f32.
    let roundoff = reference::unit_roundoff(output).max(2f64.powi(-24)) + 16.0 * 2f64.powi(-24);
    for (row, place) in lses.enumerate() {
        let own: Vec<_> = numbers.iter().map(|state| state[row].clone()).collect();
        let sink = case.sinks.then(|| f64::from(logits[row % heads]));
        let (want, want_lse) = merge(&own, sink);
        let largest =
            own.iter().flat_map(|(o, _)| o).filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
        for (want, place) in want.iter().zip(&columns[row * head_dim..]) {
            let diff = (at(&got_o, output, *place) - want).abs();
            assert!(diff <= roundoff * largest, "{case:?}, seed {seed}, row {row}: off by {diff:e}");
        }
        let (got, want) = (at(&got_lse, DType::F32, place), want_lse * factor(case.units[1]));
        let right = got == want || (got - want).abs() <= 1e-5 * want.abs().max(1.0);
        assert!(right, "{case:?}, seed {seed}, row {row}: log-sum-exp {got}, not {want}");
    }
    Ok(())
}

#[test]
fn every_kernel_layout_and_place() {
    for (seed, case) in CASES.iter().enumerate() {
        run(case, seed as u64, None).unwrap_or_else(|error| panic!("{case:?}, seed {seed}: {error}"));
    }
    let all: Vec<_> = spec::MERGES.iter().map(|kernel| kernel.contract.symbol).collect();
    assert!(all.iter().all(|symbol| CASES.iter().any(|case| case.symbol == *symbol)), "{all:?}");
}

#[test]
fn a_result_that_takes_its_place_too_early_is_a_race() {
    let text = ptx::source("merge_f16").expect("this build carries it");
    const BARRIER: &str = "bar.sync \t0;";
    assert_eq!(text.matches(BARRIER).count(), 1, "{BARRIER}");
    let case = Case { place_of: Some(0), ..F16 };
    run(&case, 1, None).expect("with its barrier");
    let report = run(&case, 1, Some(&text.replace(BARRIER, ""))).expect_err("without").to_string();
    assert!(report.contains("race"), "{report}");
}
