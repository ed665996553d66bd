//! Reference attention of one sequence by candle's operations in f32, with every feature of FerroFlash's
//! candle functions.
use candle::{DType, Result, Tensor};

/// Parameters of the reference.
pub struct Reference {
    /// Factor of the scores.
    pub scale: f32,
    /// Softcap; 0 is off.
    pub softcap: f32,
    /// Number of visible keys before a query's position; `None` is all.
    pub left: Option<usize>,
    /// Number of visible keys after a query's position; `None` is all.
    pub right: Option<usize>,
    /// ALiBi slopes, `[heads]`.
    pub slopes: Option<Tensor>,
    /// Attention sinks, `[heads]`.
    pub sinks: Option<Tensor>,
    /// Ranges of positions. All positions of a range see each other regardless of the mask.
    pub ranges: Vec<(usize, usize)>,
}

impl Reference {
    /// Returns the parameters of a causal mask without other features.
    pub fn causal(scale: f32) -> Self {
        let (left, right, slopes, sinks) = (None, Some(0), None, None);
        Reference { scale, softcap: 0.0, left, right, slopes, sinks, ranges: Vec::new() }
    }

    /// Computes one sequence. `q`, `k` and `v` are `[rows, heads, head_dim]`. Returns O and LSE `[heads,
    /// rows]`.
    pub fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let device = q.device();
        let ((rows, heads, _), (keys, heads_k, dim)) = (q.dims3()?, k.dims3()?);
        let repeat = |x: &Tensor| -> Result<Tensor> {
            let x = x.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?.unsqueeze(1)?;
            x.broadcast_as((heads_k, heads / heads_k, keys, dim))?.reshape((heads, keys, dim))
        };
        let q = q.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?;
        let mut scores = (q.matmul(&repeat(k)?.t()?.contiguous()?)? * self.scale as f64)?;
        if self.softcap > 0.0 {
            scores = ((scores / self.softcap as f64)?.tanh()? * self.softcap as f64)?;
        }
        let (mut hidden, mut distance) = (Vec::new(), Vec::new());
        for i in 0..rows as i64 {
            let at = i + keys as i64 - rows as i64;
            for j in 0..keys as i64 {
                let past = self.left.is_some_and(|left| j < at - left as i64);
                let ahead = self.right.is_some_and(|right| j > at + right as i64);
                let together = |&(s, e): &(usize, usize)| {
                    let inside = |x: i64| x >= s as i64 && x < e as i64;
                    inside(at) && inside(j)
                };
                let seen = !(past || ahead) || self.ranges.iter().any(together);
                hidden.push(if seen { 0f32 } else { f32::NEG_INFINITY });
                distance.push((at - j).abs() as f32);
            }
        }
        if let Some(slopes) = &self.slopes {
            let distance = Tensor::from_vec(distance, (1, rows, keys), device)?;
            scores = (scores - slopes.reshape((heads, 1, 1))?.broadcast_mul(&distance)?)?;
        }
        scores = scores.broadcast_add(&Tensor::from_vec(hidden, (1, rows, keys), device)?)?;
        if let Some(sinks) = &self.sinks {
            let column = sinks.reshape((heads, 1, 1))?.broadcast_as((heads, rows, 1))?;
            scores = Tensor::cat(&[&scores, &column.contiguous()?], 2)?;
        }
        let lse = scores.log_sum_exp(2)?;
        let weights = candle_nn::ops::softmax_last_dim(&scores)?.narrow(2, 0, keys)?.contiguous()?;
        Ok((weights.matmul(&repeat(v)?)?.transpose(0, 1)?, lse))
    }
}
