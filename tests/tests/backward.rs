//! Backward kernels against gradients in f64, in the simulator with all checks.
#[path = "backward/reference.rs"]
mod reference;

use cuda_builder::{CudaBuilder, Module};
use ferroflash::driver::{Driver, Harness, SimBuffer, SimDriver};
use ferroflash::spec::*;
use own_kernels::backward::{BF16, DELTAS, DKDVS, DQS};
use ptx_sim::{Completion, Options};
use reference::{Case, Gradients};
use std::path::Path;
use std::sync::LazyLock;

static MODULES: LazyLock<Vec<Module>> = LazyLock::new(|| {
    let attention = DKDVS.iter().chain(DQS).chain(BF16).map(|e| e.contract);
    let contracts = DELTAS.iter().map(|e| e.contract).chain(attention);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    CudaBuilder::new(folder).entries(contracts).build().expect("the kernels compile").modules
});

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

    fn tensor(&self, driver: &SimDriver) -> Tensor {
        let [_, rows, heads, columns] = self.shape;
        Tensor {
            base: driver.address(&self.buffer),
            batch_bytes: (rows * heads * columns * 2) as u64,
            head_bytes: (columns * 2) as u64,
            row_bytes: (heads * columns * 2) as u32,
            rows: rows as u32,
            chunks: columns as u32 / 8,
            reserved: 0,
        }
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

/// Launches one kernel of the three.
fn launch<P: Plain>(driver: &SimDriver, contract: &Contract, grid: u32, params: &P) {
    let module = MODULES.iter().find(|module| module.contract.symbol == contract.symbol).expect("compiled");
    let kernel = driver.load(&module.text, contract).expect("loads");
    let mut bytes = vec![0; size_of::<P>()];
    params.write(&mut bytes);
    let stream = driver.stream().expect("a stream");
    // SAFETY: the caller's memory lives longer than this call, which waits for the kernel.
    unsafe { driver.launch(&kernel, [grid, 1, 1], &bytes, &stream).expect("launches") };
    driver.synchronize(&stream).expect("ends");
}

/// The gradients that the kernels compute.
fn gradients(
    case: &Case,
    inputs: &reference::Inputs,
    forward: &Gradients,
    options: Options,
) -> [Vec<f64>; 3] {
    let driver = SimDriver::with_options("l4", options).expect("a profile");
    let Case { dtype, batch, heads, kv_heads, queries, keys, head_dim, .. } = *case;
    let (of_q, of_k) = ([batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]);
    let memory = |name, shape, data| Memory::new(&driver, dtype, name, shape, data);
    let [q, k, v, d_o] = [("q", of_q), ("k", of_k), ("v", of_k), ("d_o", of_q)]
        .map(|(name, shape)| memory(name, shape, Some(inputs.of(name))));
    let o = memory("o", of_q, Some(&forward.o));
    let [dq, dk, dv] =
        [("dq", of_q), ("dk", of_k), ("dv", of_k)].map(|(name, shape)| memory(name, shape, None));
    let lse = f32s(&driver, "lse", &forward.lse);
    let d_lse = f32s(&driver, "d_lse", &inputs.d_lse);
    let rows = queries.next_multiple_of(PaddedVector::ROWS as usize);
    let padded = |name| {
        let buffer = driver.allocate_named(name, batch * heads * rows * 4).expect("memory");
        let base = driver.address(&buffer);
        (buffer, PaddedVector { base, rows: rows as u32, heads: (batch * heads) as u32 })
    };
    let ((_a, minus_lse), (_b, delta)) = (padded("minus_lse"), padded("delta"));
    let vector = |buffer: &SimBuffer| Lse {
        base: driver.address(buffer),
        batch_bytes: (heads * queries * 4) as u64,
        head_bytes: (queries * 4) as u64,
    };
    let params = BwdDeltaParams {
        o: o.tensor(&driver),
        d_o: d_o.tensor(&driver),
        lse: vector(&lse),
        d_lse: vector(&d_lse),
        minus_lse,
        delta,
        heads: FastDiv::new(heads as u32).expect("a divisor"),
        blocks: FastDiv::new(rows as u32 / DELTA_ROWS).expect("a divisor"),
    };
    let fits = |of, columns| of == dtype && head_dim <= columns as usize;
    let delta_kernel = DELTAS.iter().find(|e| fits(e.dtype, e.head_dim)).expect("a kernel");
    launch(&driver, &delta_kernel.contract, params.blocks.get() * delta.heads, &params);

    let group = (heads / kv_heads) as u32;
    let order = |len: usize, tile: u32, heads: usize, kv_heads: usize| {
        let m_blocks = (len as u32).div_ceil(tile);
        TileOrder::new(m_blocks, batch as u32, heads as u32, kv_heads as u32, 1).expect("an order")
    };
    let scale = case.scale as f32;
    let log2_e = std::f32::consts::LOG2_E;
    let softcap = case.softcap as f32;
    let slopes = f32s(&driver, "slopes", &case.slopes);
    let [left, right] = case.window.map(|x| x.map_or(Window::UNBOUNDED, |x| x as i32));
    let problem = |order| BwdParams {
        q: q.tensor(&driver),
        k: k.tensor(&driver),
        v: v.tensor(&driver),
        d_o: d_o.tensor(&driver),
        minus_lse,
        delta,
        window: Window { shift: keys as i32 - queries as i32, left, right },
        scale_log2: log2_e * if softcap > 0.0 { softcap } else { scale },
        softcap: if softcap > 0.0 { scale / softcap } else { 0.0 },
        scale,
        heads_per_kv: group,
        order,
        alibi: PerHead {
            base: if case.slopes.is_empty() { 0 } else { driver.address(&slopes) },
            sequence_bytes: 0,
            head_bytes: 4,
            value: 0.0,
            reserved: 0,
        },
    };
    let kernel = |pass: Pass| {
        let solves = |e: &&AttnInfo| (e.pass, e.mask) == (pass, case.mask()) && fits(e.dtype, e.head_dim);
        let e = DKDVS.iter().chain(DQS).chain(BF16).find(solves).expect("a kernel");
        (e.contract, e.tile_m)
    };
    let (contract, tile) = kernel(Pass::DkDv);
    let of_keys = order(keys, tile, kv_heads, kv_heads);
    let params = BwdDkDvParams { problem: problem(of_keys), dk: dk.tensor(&driver), dv: dv.tensor(&driver) };
    launch(&driver, &contract, of_keys.tiles, &params);
    let (contract, tile) = kernel(Pass::Dq);
    let of_queries = order(queries, tile, heads, kv_heads);
    let params = BwdDqParams { problem: problem(of_queries), dq: dq.tensor(&driver) };
    launch(&driver, &contract, of_queries.tiles, &params);
    [dq, dk, dv].map(|memory| memory.read(&driver))
}

/// The largest error, infinite if a value is not a number.
fn error(got: &[f64], exact: &[f64]) -> f64 {
    let off = |(a, b): (&f64, &f64)| if a.is_nan() || b.is_nan() { f64::INFINITY } else { (a - b).abs() };
    got.iter().zip(exact).map(off).fold(0.0, f64::max)
}

/// Checks the gradients of a case. A case of several batches runs again under another schedule of warps and
/// copies, which must give equal bits.
fn check(case: Case) {
    let inputs = reference::Inputs::new(&case);
    let exact = reference::gradients(&case, &inputs, |x| x);
    let naive = reference::gradients(&case, &inputs, |x| reference::round(case.dtype, x));
    let got = gradients(&case, &inputs, &exact, Options::default());
    if case.batch > 1 {
        let other = Options { seed: 1, completion: Completion::Random, ..Options::default() };
        let again = gradients(&case, &inputs, &exact, other);
        let bits = |of: &[Vec<f64>; 3]| of.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&again), "{case:?}: other bits in a second launch");
    }
    for (i, (name, got)) in ["dq", "dk", "dv"].into_iter().zip(&got).enumerate() {
        let (exact, naive, sum) = (exact.of(i), naive.of(i), exact.sums.get(i).unwrap_or(&0.0));
        let bound = 2.0 * error(naive, exact) + 1e-5 + sum * 2f64.powi(-24);
        let error = error(got, exact);
        assert!(error <= bound, "{case:?}: {name} differs by {error:e}, more than {bound:e}");
    }
}

#[test]
fn gradients_are_those_of_f64() {
    let base = Case {
        dtype: DType::F16,
        batch: 1,
        heads: 1,
        kv_heads: 1,
        queries: 1,
        keys: 1,
        head_dim: 64,
        scale: 0.125,
        window: [None, None],
        softcap: 0.0,
        slopes: vec![],
        seed: 1,
    };
    for head_dim in [32, 64, 96, 128, 192, 256] {
        let base = Case { head_dim, scale: 1.0 / (head_dim as f64).sqrt(), ..base.clone() };
        let windows = [[None, None], [None, Some(0)], [Some(40), Some(0)], [Some(30), Some(20)]];
        for (seed, window) in (1..).zip(windows) {
            let base = Case { window, seed, ..base.clone() };
            let groups = Case { batch: 2, heads: 4, kv_heads: 2, head_dim: head_dim - 24, ..base.clone() };
            check(Case { queries: 70, keys: 140, ..groups });
            if head_dim == 64 || head_dim == 128 {
                check(base.clone());
                check(Case { queries: 33, keys: 150, ..base.clone() });
                check(Case { queries: 150, keys: 33, ..base });
            }
        }
        let causal = Case { window: [None, Some(0)], queries: 100, keys: 130, ..base };
        if head_dim == 64 {
            check(Case { dtype: DType::Bf16, ..causal.clone() });
            // Blocks between two edges: the interior of a long window.
            check(Case { window: [Some(300), Some(0)], queries: 500, keys: 500, ..causal.clone() });
        }
        check(Case { softcap: 2.0, ..causal.clone() });
        check(Case { slopes: vec![0.5, 0.125], heads: 2, ..causal });
    }
}
