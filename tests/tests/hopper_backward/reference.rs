//! Attention and its gradients. A function rounds what a kernel
//! rounds: P, O, dS and the gradients.
use ferroflash::DType;
use half::{bf16, f16};

/// The bits of the nearest number of a dtype.
pub fn bits(dtype: DType, x: f64) -> u16 {
    if dtype == DType::Bf16 { bf16::from_f64(x).to_bits() } else { f16::from_f64(x).to_bits() }
}

/// The number with these bits.
pub fn value(dtype: DType, bits: u16) -> f64 {
    if dtype == DType::Bf16 { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() }
}

/// The nearest number of a dtype.
pub fn round(dtype: DType, x: f64) -> f64 {
    value(dtype, bits(dtype, x))
}

/// A problem on contiguous tensors `[batch, rows, heads, columns]`.
#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: DType,
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub scale: f64,
    /// Keys before and behind a query's position.
    pub window: [Option<usize>; 2],
    /// 0 for none.
    pub softcap: f64,
    /// ALiBi slopes of the heads; empty for none.
    pub slopes: Vec<f64>,
    /// The score of all queries and keys, below 0; 0 for random scores.
    pub score: f64,
    pub seed: u64,
}

impl Case {
    fn distance(&self, query: usize, key: usize) -> i64 {
        (query + self.keys) as i64 - self.queries as i64 - key as i64
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        let distance = self.distance(query, key);
        self.window[0].is_none_or(|left| distance <= left as i64)
            && self.window[1].is_none_or(|right| -distance <= right as i64)
    }
}

/// The inputs of a case, rounded to its dtype.
pub struct Inputs {
    tensors: [Vec<f64>; 4],
    /// The gradient of the LSE, `[batch, heads, queries]`.
    pub d_lse: Vec<f64>,
}

impl Inputs {
    pub fn new(case: &Case) -> Self {
        let mut state = case.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut normal =
            move || (-2.0 * uniform().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let mut draw = |rows, heads| -> Vec<f64> {
            let count = case.batch * rows * heads * case.head_dim;
            (0..count).map(|_| round(case.dtype, normal())).collect()
        };
        let (mut q, mut k) = (draw(case.queries, case.heads), draw(case.keys, case.kv_heads));
        if case.score < 0.0 {
            let x = round(case.dtype, (-case.score / (case.scale * case.head_dim as f64)).sqrt());
            q.fill(x);
            k.fill(-x);
        }
        let (v, d_o) = (draw(case.keys, case.kv_heads), draw(case.queries, case.heads));
        let d_lse = (0..case.batch * case.heads * case.queries).map(|_| normal() as f32 as f64).collect();
        Inputs { tensors: [q, k, v, d_o], d_lse }
    }

    pub fn of(&self, name: &str) -> &[f64] {
        &self.tensors[["q", "k", "v", "d_o"].iter().position(|of| *of == name).expect("a name")]
    }
}

/// Output, LSE `[batch, heads, queries]`, gradients.
pub struct Gradients {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    gradients: [Vec<f64>; 3],
    /// The largest sum of the magnitudes of which an element of dQ or of dK is the sum.
    pub sums: [f64; 2],
}

impl Gradients {
    /// dQ, dK, dV by index.
    pub fn of(&self, i: usize) -> &[f64] {
        &self.gradients[i]
    }
}

pub fn gradients(case: &Case, inputs: &Inputs, round: impl Fn(f64) -> f64 + Copy) -> Gradients {
    let Case { batch, heads, kv_heads, queries, keys, head_dim: d, .. } = *case;
    let [q, k, v, d_o] = &inputs.tensors;
    let mut g = Gradients {
        o: vec![0.0; q.len()],
        lse: vec![f64::NEG_INFINITY; batch * heads * queries],
        gradients: [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]],
        sums: [0.0; 2],
    };
    let mut key_sums = vec![0.0; k.len()];
    for (b, h, i) in
        (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i))))
    {
        let of_q = ((b * queries + i) * heads + h) * d;
        let of_k = |j: usize| ((b * keys + j) * kv_heads + h / (heads / kv_heads)) * d;
        let seen: Vec<usize> = (0..keys).filter(|j| case.sees(i, *j)).collect();
        if seen.is_empty() {
            continue;
        }
        let dot =
            |a: &[f64], x: usize, b: &[f64], y: usize| -> f64 { (0..d).map(|c| a[x + c] * b[y + c]).sum() };
        let products: Vec<f64> = seen.iter().map(|&j| dot(q, of_q, k, of_k(j))).collect();
        let capped = |s: f64| if case.softcap > 0.0 { (s * case.scale / case.softcap).tanh() } else { 0.0 };
        let scores: Vec<f64> = seen
            .iter()
            .zip(&products)
            .map(|(&j, s)| {
                let s = if case.softcap > 0.0 { case.softcap * capped(*s) } else { s * case.scale };
                let slope = case.slopes.get(h).copied().unwrap_or(0.0);
                s - slope * case.distance(i, j).abs() as f64
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let row = (b * heads + h) * queries + i;
        g.lse[row] = max + sum.ln();
        let p: Vec<f64> = scores.iter().map(|s| round((s - max).exp() / sum)).collect();
        for c in 0..d {
            g.o[of_q + c] = round(seen.iter().zip(&p).map(|(&j, p)| p * v[of_k(j) + c]).sum());
        }
        let dp: Vec<f64> = seen.iter().map(|&j| dot(d_o, of_q, v, of_k(j))).collect();
        let delta = dot(d_o, of_q, &g.o, of_q) - inputs.d_lse[row];
        let magnitude = |a: &[f64], x: usize| (0..d).map(|c| (d_o[of_q + c] * a[x + c]).abs()).sum::<f64>();
        let mut row_sums = vec![0.0; d];
        for (n, &j) in seen.iter().enumerate() {
            let t = capped(products[n]);
            let ds = round(p[n] * (dp[n] - delta) * (1.0 - t * t));
            let most =
                p[n] * (magnitude(v, of_k(j)) + magnitude(&g.o, of_q) + inputs.d_lse[row].abs()) * case.scale;
            for c in 0..d {
                g.gradients[0][of_q + c] += case.scale * ds * k[of_k(j) + c];
                g.gradients[1][of_k(j) + c] += case.scale * ds * q[of_q + c];
                g.gradients[2][of_k(j) + c] += p[n] * d_o[of_q + c];
                row_sums[c] += most * k[of_k(j) + c].abs();
                key_sums[of_k(j) + c] += most * q[of_q + c].abs();
            }
        }
        g.sums[0] = row_sums.into_iter().fold(g.sums[0], f64::max);
    }
    g.sums[1] = key_sums.into_iter().fold(0.0, f64::max);
    for gradient in &mut g.gradients {
        gradient.iter_mut().for_each(|x| *x = round(*x));
    }
    g
}
