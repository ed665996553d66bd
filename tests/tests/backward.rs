//! Backward kernels against gradients in f64, in the simulator with all checks.
#[path = "backward/reference.rs"]
mod reference;

use ferroflash::driver::{Harness, SimBuffer, SimDriver};
use ferroflash::request::{
    AlibiSlopes, AttentionBackward, AttentionRequest, LseView, Mask, Scratch, TensorView,
};
use ferroflash::{Attention, DType};
use ptx_sim::{Completion, Options};
use reference::{Case, Gradients};

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

    fn view(&self, driver: &SimDriver) -> TensorView {
        TensorView::bshd(
            driver.address(&self.buffer),
            self.shape.iter().product::<usize>() as u64,
            self.dtype,
            self.shape,
        )
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

/// The gradients that the library computes.
fn gradients(
    case: &Case,
    inputs: &reference::Inputs,
    forward: &Gradients,
    options: Options,
) -> [Vec<f64>; 3] {
    let attention = Attention::new(SimDriver::with_options("l4", options).expect("a profile"));
    let driver = attention.driver();
    let Case { dtype, batch, heads, kv_heads, queries, keys, head_dim, .. } = *case;
    let (of_q, of_k) = ([batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]);
    let memory = |name, shape, data| Memory::new(driver, dtype, name, shape, data);
    let [q, k, v, d_o] = [("q", of_q), ("k", of_k), ("v", of_k), ("d_o", of_q)]
        .map(|(name, shape)| memory(name, shape, Some(inputs.of(name))));
    let o = memory("o", of_q, Some(&forward.o));
    let [dq, dk, dv] =
        [("dq", of_q), ("dk", of_k), ("dv", of_k)].map(|(name, shape)| memory(name, shape, None));
    let [lse, d_lse] =
        [("lse", &forward.lse), ("d_lse", &inputs.d_lse)].map(|(name, data)| f32s(driver, name, data));
    let slopes = f32s(driver, "slopes", &case.slopes);
    let row_values = |buffer: &SimBuffer| {
        LseView::contiguous(driver.address(buffer), (batch * heads * queries) as u64, [batch, heads, queries])
    };
    let [left, right] = case.window.map(|side| side.map(|side| side as u32));
    let view = |memory: &Memory| memory.view(driver);
    let mut request = AttentionRequest::dense(view(&q), view(&k), view(&v), view(&o))
        .mask(Mask::Window { left, right })
        .scale(case.scale as f32)
        .softcap(case.softcap as f32)
        .lse(row_values(&lse));
    if !case.slopes.is_empty() {
        request = request.alibi(AlibiSlopes::new(driver.address(&slopes), heads as u64));
    }
    let backward = AttentionBackward::new(request, view(&d_o), view(&dq), view(&dk), view(&dv));
    let backward = backward.d_lse(row_values(&d_lse));
    let plan = attention.plan(&backward).expect("planned");
    let bytes = plan.scratch_bytes().workspace;
    let workspace = driver.allocate_named("workspace", bytes as usize).expect("memory");
    let backward = backward.scratch(Scratch::workspace(driver.address(&workspace), bytes));
    let stream = driver.stream().expect("a stream");
    // SAFETY: the views describe buffers of this driver, which live until the launch has run.
    unsafe { attention.launch(&plan, &backward, &stream).expect("launches") };
    driver.synchronize(&stream).expect("ends");
    [dq, dk, dv].map(|memory| memory.read(driver))
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
