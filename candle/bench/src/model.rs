//! A Llama with random weights and a paged KV cache. Each of the compared libraries can compute the model's
//! attention.
use crate::side::{Shared, Side};
use candle::{DType, Device, Result, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::rope_thd;
use ferroflash_candle::{KvCache, Step};

/// Sizes of the model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Columns inside the feed-forward part.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Numbers of query heads and key heads.
    pub heads: [usize; 2],
    /// Columns of a head.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
}

impl Config {
    /// The sizes of Llama 3.2 1B, with a last layer separate from its embedding: 1.5e9 parameters.
    pub const LARGE: Config = Config {
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: [32, 8],
        head_dim: 64,
        vocabulary: 128_256,
    };
    /// Sizes that leave memory for an f32 copy of the model.
    pub const SMALL: Config =
        Config { hidden: 512, intermediate: 1376, layers: 4, heads: [8, 2], head_dim: 64, vocabulary: 2048 };
}

struct Layer {
    norms: [Tensor; 2],
    /// The weights are separate, as in candle's models, so that each product's output is contiguous.
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// The weights, and the tables of the rotary embedding.
pub struct Model {
    /// The model's sizes.
    pub config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    angles: [Tensor; 2],
}

impl Model {
    /// Returns random weights. The weights' scale keeps activations from vanishing and overflowing. Weights
    /// of queries and keys are larger, so that attention is not uniform.
    pub fn random(config: Config, positions: usize, device: &Device) -> Result<Model> {
        let Config { hidden, intermediate, layers, heads: [heads, heads_k], head_dim, vocabulary } = config;
        let random = |rows: usize, columns: usize, gain: f64| {
            let deviation = (gain / (columns as f64).sqrt()) as f32;
            Tensor::randn(0f32, deviation, (rows, columns), device)?.to_dtype(DType::F16)
        };
        let one = Tensor::ones(hidden, DType::F16, device)?;
        let layer = || -> Result<Layer> {
            Ok(Layer {
                norms: [one.clone(), one.clone()],
                q: random(heads * head_dim, hidden, 1.5)?,
                k: random(heads_k * head_dim, hidden, 1.5)?,
                v: random(heads_k * head_dim, hidden, 1.0)?,
                out: random(hidden, heads * head_dim, 1.0)?,
                gate: random(intermediate, hidden, 1.0)?,
                up: random(intermediate, hidden, 1.0)?,
                down: random(hidden, intermediate, 1.0)?,
            })
        };
        let half = head_dim / 2;
        let frequencies: Vec<f32> =
            (0..half).map(|i| 1.0 / 500_000f32.powf(i as f32 / half as f32)).collect();
        let frequencies = Tensor::from_vec(frequencies, (1, half), device)?;
        let at =
            Tensor::arange(0u32, positions as u32, device)?.to_dtype(DType::F32)?.reshape((positions, 1))?;
        let angles = at.matmul(&frequencies)?;
        Ok(Model {
            config,
            embedding: random(vocabulary, hidden, (hidden as f64).sqrt())?,
            layers: (0..layers).map(|_| layer()).collect::<Result<_>>()?,
            norm: one.clone(),
            head: random(vocabulary, hidden, 1.0)?,
            angles: [angles.cos()?.to_dtype(DType::F16)?, angles.sin()?.to_dtype(DType::F16)?],
        })
    }

    /// Returns the model in f32, as the reference.
    pub fn exact(&self) -> Result<Model> {
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        let layers = self.layers.iter().map(|layer| {
            Ok(Layer {
                norms: [wide(&layer.norms[0])?, wide(&layer.norms[1])?],
                q: wide(&layer.q)?,
                k: wide(&layer.k)?,
                v: wide(&layer.v)?,
                out: wide(&layer.out)?,
                gate: wide(&layer.gate)?,
                up: wide(&layer.up)?,
                down: wide(&layer.down)?,
            })
        });
        Ok(Model {
            config: self.config,
            embedding: wide(&self.embedding)?,
            layers: layers.collect::<Result<_>>()?,
            norm: wide(&self.norm)?,
            head: wide(&self.head)?,
            angles: [wide(&self.angles[0])?, wide(&self.angles[1])?],
        })
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        let of = |l: &Layer| {
            let all = [&l.q, &l.k, &l.v, &l.out, &l.gate, &l.up, &l.down];
            all.map(Tensor::elem_count).iter().sum::<usize>()
        };
        self.embedding.elem_count() + self.head.elem_count() + self.layers.iter().map(of).sum::<usize>()
    }

    /// Returns one KV cache per layer.
    pub fn caches(&self, pages: usize, page: usize) -> Result<Vec<KvCache>> {
        let [_, heads_k] = self.config.heads;
        let shape = (pages, page, heads_k, self.config.head_dim);
        (0..self.layers.len()).map(|_| KvCache::new(shape, DType::F16, self.embedding.device())).collect()
    }

    /// Computes the logits of each sequence's last row. If the step is one sequence without earlier keys,
    /// `fresh` is true, and attention reads keys and values directly instead of the cache. Without caches,
    /// the model does not keep keys and values.
    pub fn forward(
        &self,
        side: Side,
        tokens: &Tensor,
        step: &Step,
        shared: Option<&Shared>,
        mut caches: Option<&mut [KvCache]>,
        fresh: bool,
    ) -> Result<Tensor> {
        let Config { heads: [heads, heads_k], head_dim, .. } = self.config;
        let (rows, scale) = (step.tokens(), 1.0 / (head_dim as f32).sqrt());
        let positions = step.positions()?;
        let [cos, sin] =
            [self.angles[0].index_select(&positions, 0)?, self.angles[1].index_select(&positions, 0)?];
        let mut x = self.embedding.index_select(tokens, 0)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let normed = rms_norm(&x, &layer.norms[0], 1e-5)?;
            let of =
                |weights: &Tensor, heads| normed.matmul(&weights.t()?)?.reshape((1, rows, heads, head_dim));
            let q = rope_thd(&of(&layer.q, heads)?, &cos, &sin)?;
            let k = rope_thd(&of(&layer.k, heads_k)?, &cos, &sin)?;
            let v = of(&layer.v, heads_k)?;
            if let Some(caches) = &mut caches {
                caches[i].append(&k.squeeze(0)?, &v.squeeze(0)?, step)?;
            }
            let o = match (&caches, fresh) {
                (Some(caches), false) => side.cached(&q.squeeze(0)?, &caches[i], step, shared, scale)?,
                _ => side.flash_attn(&q, &k, &v, scale, true)?,
            };
            x = (x + o.reshape((rows, heads * head_dim))?.matmul(&layer.out.t()?)?)?;
            let normed = rms_norm(&x, &layer.norms[1], 1e-5)?;
            let gate = silu(&normed.matmul(&layer.gate.t()?)?)?;
            let up = normed.matmul(&layer.up.t()?)?;
            x = (x + (gate * up)?.matmul(&layer.down.t()?)?)?;
        }
        let last = x.index_select(&step.last_rows()?, 0)?;
        rms_norm(&last, &self.norm, 1e-5)?.matmul(&self.head.t()?)
    }
}

/// Returns tokens from a fixed seed.
pub fn tokens(count: usize, vocabulary: usize, device: &Device) -> Result<Tensor> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % vocabulary as u32
    };
    Tensor::from_vec((0..count).map(|_| next()).collect::<Vec<_>>(), count, device)
}
