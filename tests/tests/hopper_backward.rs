//! Hopper's backward kernels against gradients in f64, in the simulator with all checks.
#[path = "hopper_backward/reference.rs"]
mod reference;

use ferroflash::driver::{Driver, Harness, MapDescription, MapKind, SimBuffer, SimDriver};
use ferroflash::spec::*;
use ferroflash::{Error, ptx};
use ptx_sim::{Completion, Options};
use reference::{Case, Gradients, Inputs};

/// Returns the text of a kernel.
fn text(kernel: &Contract) -> String {
    ptx::source(kernel.symbol).expect("this build carries it")
}

/// A tensor `[batch, rows, heads, columns]` in the simulator's memory.
struct Memory {
    dtype: DType,
    buffer: SimBuffer,
    shape: [usize; 4],
}

impl Memory {
    fn new(driver: &SimDriver, dtype: DType, name: &str, shape: [usize; 4], data: Option<&[f64]>) -> Self {
        let mut buffer = driver.allocate_named(name, shape.iter().product::<usize>() * 2).expect("memory");
        match data {
            Some(data) => {
                let bytes: Vec<u8> =
                    data.iter().flat_map(|x| reference::bits(dtype, *x).to_le_bytes()).collect();
                driver.upload(&mut buffer, &bytes).expect("fits");
            }
            None => driver.fill(&mut buffer, 0xff).expect("memory"), // NaN
        }
        Memory { dtype, buffer, shape }
    }

    /// Bytes from one row to the next, from one head to the next, from one batch to the next.
    fn strides(&self) -> [u64; 3] {
        let [_, rows, heads, columns] = self.shape;
        [heads * columns * 2, columns * 2, rows * heads * columns * 2].map(|bytes| bytes as u64)
    }

    fn tensor(&self, driver: &SimDriver) -> Tensor {
        let ([_, rows, _, columns], [row, head, batch]) = (self.shape, self.strides());
        Tensor {
            base: driver.address(&self.buffer),
            batch_bytes: batch,
            head_bytes: head,
            row_bytes: row as u32,
            rows: rows as u32,
            chunks: columns as u32 / 8,
            reserved: 0,
        }
    }

    fn map(&self, driver: &SimDriver, box_shape: [u32; 2]) -> TensorMap {
        let [batch, rows, heads, columns] = self.shape.map(|extent| extent as u32);
        let map = MapDescription {
            address: driver.address(&self.buffer),
            strides: self.strides(),
            extents: [columns, rows, heads, batch],
            box_shape,
            dtype: self.dtype,
            kind: MapKind::Whole,
        };
        driver.tensor_map(&map).expect("a tensor map")
    }

    fn read(&self, driver: &SimDriver) -> Vec<f64> {
        let mut bytes = vec![0; self.shape.iter().product::<usize>() * 2];
        driver.download(&self.buffer, &mut bytes).expect("every element was written");
        bytes.chunks(2).map(|x| reference::value(self.dtype, u16::from_le_bytes([x[0], x[1]]))).collect()
    }
}

fn f32s(driver: &SimDriver, name: &str, data: &[f64]) -> SimBuffer {
    let mut buffer = driver.allocate_named(name, data.len() * 4).expect("memory");
    let bytes: Vec<u8> = data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
    driver.upload(&mut buffer, &bytes).expect("fits");
    buffer
}

/// Changes the text of a kernel.
type Mutate = fn(&str) -> String;

/// Launches one kernel of the three, whose text `mutate` changes.
fn launch<P: Plain>(
    driver: &SimDriver,
    contract: &Contract,
    grid: [u32; 3],
    params: &P,
    mutate: Mutate,
) -> Result<(), Error> {
    let kernel = driver.load(&mutate(&text(contract)), contract).expect("loads");
    let mut bytes = vec![0; size_of::<P>()];
    params.write(&mut bytes);
    let stream = driver.stream().expect("a stream");
    // SAFETY: the caller's memory lives longer than this call, which waits for the kernel.
    unsafe { driver.launch(&kernel, grid, &bytes, &stream)? };
    driver.synchronize(&stream)
}

/// The mask of the kernel that solves a case.
fn mask(case: &Case) -> MaskKind {
    match case.window {
        _ if case.softcap > 0.0 || !case.slopes.is_empty() => MaskKind::Local,
        [None, None] => MaskKind::Full,
        [None, Some(0)] => MaskKind::Causal,
        _ => MaskKind::Local,
    }
}

/// The schedule of a launch, and the kernel's text.
struct How {
    options: Options,
    /// Blocks that run at once.
    sms: u32,
    /// Whether the key blocks of several heads run together.
    grouped: bool,
    /// Changes the text of the kernel that computes all gradients.
    mutate: Mutate,
}

/// The gradients that the kernels compute.
fn gradients(case: &Case, inputs: &Inputs, forward: &Gradients, how: &How) -> Result<[Vec<f64>; 3], Error> {
    let driver =
        SimDriver::of_multiprocessors("h200", how.options.clone(), Some(how.sms)).expect("a profile");
    let driver = &driver;
    let Case { dtype, batch, heads, kv_heads, queries, keys, head_dim, .. } = *case;
    let (of_q, of_k) = ([batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]);
    let memory = |name, shape, data| Memory::new(driver, dtype, name, shape, data);
    let [q, k, v, d_o] = [("q", of_q), ("k", of_k), ("v", of_k), ("d_o", of_q)]
        .map(|(name, shape)| memory(name, shape, Some(inputs.of(name))));
    let o = memory("o", of_q, Some(&forward.o));
    let [dq, dk, dv] =
        [("dq", of_q), ("dk", of_k), ("dv", of_k)].map(|(name, shape)| memory(name, shape, None));
    let [lse, d_lse, slopes] = [("lse", &forward.lse), ("d_lse", &inputs.d_lse), ("slopes", &case.slopes)]
        .map(|(name, data)| f32s(driver, name, data));
    let scratch = |name, bytes: u64| {
        let mut buffer = driver.allocate_named(name, bytes as usize).expect("memory");
        driver.fill(&mut buffer, 0xff).expect("memory");
        (driver.address(&buffer), buffer)
    };
    let fits = |of, columns| of == dtype && head_dim <= columns as usize;
    let solves =
        |e: &&AttnInfo| (e.pass, e.mask) == (Pass::Gradients, mask(case)) && fits(e.dtype, e.head_dim);
    let kernel = GRADIENTS.iter().find(solves).expect("a kernel");
    let (all_heads, group) = ((batch * heads) as u32, (heads / kv_heads) as u32);
    let needs = DqScratch::new(kernel, all_heads, queries as u32, group);
    let ((base, _a), (counters, _b)) =
        (scratch("sums", needs.sum_bytes), scratch("counters", needs.counters * 4));
    let sums = TileSums { base, counters, tiles: needs.tiles, heads: all_heads };

    let rows = (queries as u32).next_multiple_of(PaddedVector::ROWS);
    let [(minus_lse, _c), (delta, _d)] = ["minus_lse", "delta"].map(|name| {
        let (base, buffer) = scratch(name, (all_heads * rows * 4) as u64);
        (PaddedVector { base, rows, heads: all_heads }, buffer)
    });
    let vector = |buffer: &SimBuffer| Lse {
        base: driver.address(buffer),
        batch_bytes: (heads * queries * 4) as u64,
        head_bytes: (queries * 4) as u64,
    };
    let divisor = |x| FastDiv::new(x).expect("a divisor");
    let params = BwdDeltaParams {
        o: o.tensor(driver),
        d_o: d_o.tensor(driver),
        lse: vector(&lse),
        d_lse: vector(&d_lse),
        minus_lse,
        delta,
        cleared: Integers { base: counters, count: needs.counters as u32, reserved: 0 },
        heads: divisor(heads as u32),
        blocks: divisor(rows / DELTA_ROWS),
    };
    let delta_kernel = DELTAS.iter().find(|e| fits(e.dtype, e.head_dim)).expect("a kernel");
    launch(driver, &delta_kernel.contract, [params.blocks.get() * all_heads, 1, 1], &params, str::to_owned)?;

    let all_kv = (batch * kv_heads) as u32;
    let most = if how.grouped { needs.group.min(all_kv) } else { 1 };
    let together = (1..=most).rev().find(|n| all_kv.is_multiple_of(*n)).expect("1 divides");
    let m_blocks = (keys as u32).div_ceil(kernel.tile_m);
    let order = TileOrder::new(m_blocks, batch as u32, kv_heads as u32, kv_heads as u32, together);
    let (scale, softcap) = (case.scale as f32, case.softcap as f32);
    let [left, right] = case.window.map(|x| x.map_or(Window::UNBOUNDED, |x| x as i32));
    let [of_keys, of_queries] = kernel.boxes();
    let params = BwdHopperParams {
        q: q.map(driver, of_queries),
        d_o: d_o.map(driver, of_queries),
        k: k.map(driver, of_keys),
        v: v.map(driver, of_keys),
        dk: dk.map(driver, of_keys),
        dv: dv.map(driver, of_keys),
        minus_lse,
        delta,
        sums,
        window: Window { shift: keys as i32 - queries as i32, left, right },
        scale_log2: std::f32::consts::LOG2_E * if softcap > 0.0 { softcap } else { scale },
        softcap: if softcap > 0.0 { scale / softcap } else { 0.0 },
        scale,
        q_len: queries as u32,
        k_len: keys as u32,
        heads_per_kv: group,
        order: order.expect("an order").resident(how.sms),
        alibi: PerHead {
            base: if case.slopes.is_empty() { 0 } else { driver.address(&slopes) },
            sequence_bytes: 0,
            head_bytes: 4,
            value: 0.0,
            reserved: 0,
        },
    };
    let blocks = params.order.tiles.min(params.order.resident);
    launch(driver, &kernel.contract, [blocks, 1, 1], &params, how.mutate)?;

    let tiles = needs.tiles * (kernel.tile_n / 64);
    let params = BwdConvertDqParams {
        sums: TileSums { tiles, ..sums },
        dq: dq.tensor(driver),
        heads: divisor(heads as u32),
        tiles: divisor(tiles),
        scale,
        reserved: 0,
    };
    let convert = CONVERT_DQS.iter().find(|e| e.rounds(kernel)).expect("a kernel");
    launch(driver, &convert.contract, [tiles * all_heads, 1, 1], &params, str::to_owned)?;
    Ok([dq, dk, dv].map(|memory| memory.read(driver)))
}

/// The largest error, infinite if a value is not a number.
fn error(got: &[f64], exact: &[f64]) -> f64 {
    let off = |(a, b): (&f64, &f64)| if a.is_nan() || b.is_nan() { f64::INFINITY } else { (a - b).abs() };
    got.iter().zip(exact).map(off).fold(0.0, f64::max)
}

/// Checks the gradients of a case under several schedules, which must give equal bits: one and several blocks
/// that run at once, copies that land late and at random times.
fn check(case: Case, several: bool) {
    let inputs = Inputs::new(&case);
    let exact = reference::gradients(&case, &inputs, |x| x);
    let naive = reference::gradients(&case, &inputs, |x| reference::round(case.dtype, x));
    let how = |seed, completion, sms, grouped| How {
        options: Options { seed, completion, ..Options::default() },
        sms,
        grouped,
        mutate: str::to_owned,
    };
    let got = gradients(&case, &inputs, &exact, &how(0, Completion::Late, 2, true)).expect("ends");
    let bits = |of: &[Vec<f64>; 3]| of.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    if several {
        let random = Completion::Random;
        for other in [how(1, random, 1, false), how(2, random, 3, true), how(3, random, 7, false)] {
            let again = gradients(&case, &inputs, &exact, &other).expect("ends");
            assert!(bits(&got) == bits(&again), "{case:?}: other bits with {} blocks", other.sms);
        }
    }
    for (i, (name, got)) in ["dq", "dk", "dv"].into_iter().zip(&got).enumerate() {
        let (exact, naive, sum) = (exact.of(i), naive.of(i), exact.sums.get(i).unwrap_or(&0.0));
        let bound = 2.0 * error(naive, exact) + 1e-5 + sum * 2f64.powi(-24);
        let error = error(got, exact);
        assert!(bound.is_finite(), "{case:?}: {name} has no bound");
        assert!(error <= bound, "{case:?}: {name} differs by {error:e}, more than {bound:e}");
    }
}

fn base(head_dim: usize, window: [Option<usize>; 2], seed: u64) -> Case {
    Case {
        dtype: DType::Bf16,
        batch: 1,
        heads: 1,
        kv_heads: 1,
        queries: 1,
        keys: 1,
        head_dim,
        scale: 1.0 / (head_dim as f64).sqrt(),
        window,
        softcap: 0.0,
        slopes: vec![],
        score: 0.0,
        seed,
    }
}

#[test]
fn gradients_are_those_of_f64_in_a_fixed_order() {
    for head_dim in [64, 128] {
        let windows = [[None, None], [None, Some(0)], [Some(40), Some(0)], [Some(30), Some(20)]];
        // At head dim 128, no kernel has windows or modified scores.
        let masks = if head_dim == 64 { 4 } else { 2 };
        for (seed, window) in (1..).zip(windows).take(masks) {
            let base = base(head_dim, window, seed);
            check(base.clone(), false);
            check(Case { queries: 33, keys: 150, dtype: DType::F16, ..base.clone() }, false);
            check(Case { queries: 150, keys: 33, ..base.clone() }, false);
            let groups = Case { batch: 2, heads: 4, kv_heads: 2, head_dim: head_dim - 24, ..base };
            check(Case { queries: 140, keys: 270, ..groups.clone() }, true);
            check(Case { queries: 270, keys: 140, dtype: DType::F16, ..groups }, false);
        }
    }
    let causal = Case { queries: 100, keys: 130, ..base(64, [None, Some(0)], 9) };
    check(Case { softcap: 2.0, ..causal.clone() }, false);
    check(Case { slopes: vec![0.5, 0.125], heads: 2, ..causal }, false);
}

/// The keys end within the last block. Its rows behind the last key would have probabilities of 2^-LSE, which
/// are infinite.
#[test]
fn rows_behind_the_last_key_add_nothing() {
    for (dtype, score) in [(DType::F16, -20.0), (DType::Bf16, -100.0)] {
        let case = |head_dim, window| Case { dtype, score, ..base(head_dim, window, 1) };
        for head_dim in [64, 128] {
            let full = case(head_dim, [None, None]);
            check(Case { queries: 40, keys: 33, ..full.clone() }, true);
            check(Case { queries: 70, keys: 161, batch: 2, heads: 2, ..full }, true);
            // The last tile of queries has one query, which sees all keys.
            check(Case { queries: 129, keys: 150, ..case(head_dim, [None, Some(0)]) }, true);
        }
        check(Case { queries: 70, keys: 150, ..case(64, [Some(40), Some(20)]) }, true);
    }
}

/// The text without the first branch behind the keepers' loads of counters, so that keepers wait for no turn.
fn without_waits(text: &str) -> String {
    let mut loads = false;
    let lines = text.lines().filter(|line| {
        loads |= line.contains("ld.acquire.gpu");
        let is_wait = loads && line.contains("bra");
        loads &= !is_wait;
        !is_wait
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Two key blocks, whose additions the simulator must find unordered if a kernel drops a part of the order.
#[test]
fn additions_without_their_order_are_found() {
    let case = Case { queries: 64, keys: 256, heads: 2, kv_heads: 2, ..base(128, [None, None], 1) };
    let inputs = Inputs::new(&case);
    let exact = reference::gradients(&case, &inputs, |x| x);
    let mutants: [(&str, Mutate); 3] = [
        ("without waits", without_waits),
        ("without acquire", |text| text.replace("ld.acquire.gpu", "ld.relaxed.gpu")),
        ("without release", |text| text.replace("red.release.gpu", "red.relaxed.gpu")),
    ];
    for (name, mutate) in mutants {
        let changes = |e: &AttnInfo| {
            let text = text(&e.contract);
            mutate(&text).trim_end() != text.trim_end()
        };
        let mut kernels = GRADIENTS.iter().filter(|e| e.pass == Pass::Gradients);
        assert!(kernels.any(changes), "{name}: no kernel changes");
        let options = Options { seed: 1, completion: Completion::Random, ..Options::default() };
        let how = How { options, sms: 2, grouped: true, mutate };
        let error = gradients(&case, &inputs, &exact, &how).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("race"), "{name}: {text:?}");
    }
}
