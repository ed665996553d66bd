//! A model of Llama's family, without its attention.
use crate::config::Config;
use crate::step::{Part, Rows, Step};
use crate::weights::Weights;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use candle_nn::{ops, rotary_emb};

/// Stores keys and values, and computes attention over them.
pub trait Attention {
    /// Returns the maximum number of tokens per sequence.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// Reserves room for a sequence of at most this many tokens. Returns whether there is room now.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn admit(&mut self, _sequence: usize, _tokens: usize) -> Result<bool> {
        Ok(true)
    }

    /// Prepares attention for the next step.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn begin(&mut self, parts: &[Part]) -> Result<()>;

    /// Stores a layer's keys and values of this step, `[rows, key heads, head dim]`. Then computes attention
    /// of the step's queries, `[rows, heads, head dim]`, over all keys of their sequences.
    ///
    /// # Errors
    /// Returns an error if the device or the kernels fail.
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>;

    /// Frees a sequence's keys and values.
    fn forget(&mut self, sequence: usize);
}

/// A model on a device.
pub struct Model {
    /// The model's configuration.
    pub config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// Cosines and sines of every position, `[positions, head dim / 2]`.
    turns: [Tensor; 2],
}

struct Layer {
    before_attention: Tensor,
    /// Weights of queries, keys and values, for one product.
    qkv: Linear,
    /// Qwen3's norms of each query head and each key head.
    norms: Option<[Tensor; 2]>,
    out: Tensor,
    before_mlp: Tensor,
    /// Weights of both halves of the feed-forward part, for one product.
    gate_up: Tensor,
    down: Tensor,
}

struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = product(x, &self.weight)?;
        Ok(match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }
}

/// Returns the product of `x` and a checkpoint's weight. The weight is `[out, in]`.
fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(x.matmul(&weight.t()?)?)
}

impl Model {
    /// Creates the model from these tensors, for contexts of this many positions.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has another shape than `config` says.
    pub fn new(config: &Config, weights: &Weights, positions: usize) -> Result<Self> {
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        let embedding = weights.get("model.embed_tokens.weight", &[vocabulary, hidden])?;
        let head = match weights.maybe("lm_head.weight", &[vocabulary, hidden])? {
            Some(head) if !config.tie_word_embeddings => head,
            _ => embedding.clone(),
        };
        Ok(Model {
            layers: (0..config.num_hidden_layers)
                .map(|layer| Layer::new(config, weights, layer))
                .collect::<Result<_>>()?,
            norm: weights.get("model.norm.weight", &[hidden])?,
            turns: turns(config, positions, embedding.dtype(), embedding.device())?,
            config: config.clone(),
            embedding,
            head,
        })
    }

    /// Returns the device of the computation.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Returns the dtype of the computation.
    pub fn dtype(&self) -> DType {
        self.embedding.dtype()
    }

    /// Returns the logits of the rows that the step asks for, f32 `[rows, vocabulary]`, if the step asks for
    /// any.
    ///
    /// # Errors
    /// Returns an error if the device or attention fails.
    pub fn forward(&self, step: &Step, attention: &mut dyn Attention) -> Result<Option<Tensor>> {
        attention.begin(&step.parts)?;
        let mut x = self.embedding.index_select(&step.tokens, 0)?;
        let [cos, sin] = &self.turns;
        let turns = [cos.index_select(&step.positions, 0)?, sin.index_select(&step.positions, 0)?];
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&self.config, index, &x, &turns, attention)?;
        }
        let x = match &step.asked {
            Rows::None => return Ok(None),
            Rows::All => x,
            Rows::Some(rows) => x.index_select(rows, 0)?,
        };
        let x = ops::rms_norm(&x, &self.norm, self.config.rms_norm_eps)?;
        Ok(Some(product(&x, &self.head)?.to_dtype(DType::F32)?))
    }
}

impl Layer {
    fn new(config: &Config, weights: &Weights, layer: usize) -> Result<Self> {
        let (hidden, inner, columns) = (config.hidden_size, config.intermediate_size, config.head_dim());
        let (queries, keys) = (config.num_attention_heads * columns, config.key_heads() * columns);
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        let weight = |part: &str, shape: &[usize]| weights.get(&at(&format!("{part}.weight")), shape);
        let maybe = |part: &str, shape: &[usize]| weights.maybe(&at(part), shape);
        let parts = [("q", queries), ("k", keys), ("v", keys)];
        let mut qkv = Vec::new();
        let mut bias = Vec::new();
        for (part, rows) in parts {
            qkv.push(weight(&format!("self_attn.{part}_proj"), &[rows, hidden])?);
            bias.extend(maybe(&format!("self_attn.{part}_proj.bias"), &[rows])?);
        }
        let bias = if bias.is_empty() { None } else { Some(Tensor::cat(&bias, 0)?) };
        let [q_norm, k_norm] =
            ["q", "k"].map(|part| maybe(&format!("self_attn.{part}_norm.weight"), &[columns]));
        let gate_up = [weight("mlp.gate_proj", &[inner, hidden])?, weight("mlp.up_proj", &[inner, hidden])?];
        Ok(Layer {
            before_attention: weight("input_layernorm", &[hidden])?,
            qkv: Linear { weight: Tensor::cat(&qkv, 0)?, bias },
            norms: q_norm?.zip(k_norm?).map(|(q, k)| [q, k]),
            out: weight("self_attn.o_proj", &[hidden, queries])?,
            before_mlp: weight("post_attention_layernorm", &[hidden])?,
            gate_up: Tensor::cat(&gate_up, 0)?,
            down: weight("mlp.down_proj", &[hidden, inner])?,
        })
    }

    fn forward(
        &self,
        config: &Config,
        index: usize,
        x: &Tensor,
        [cos, sin]: &[Tensor; 2],
        attention: &mut dyn Attention,
    ) -> Result<Tensor> {
        let (rows, eps) = (x.dim(0)?, config.rms_norm_eps);
        let (heads, key_heads, columns) = (config.num_attention_heads, config.key_heads(), config.head_dim());
        let qkv = self.qkv.forward(&ops::rms_norm(x, &self.before_attention, eps)?)?;
        let qkv = qkv.reshape((rows, heads + 2 * key_heads, columns))?;
        let v = qkv.narrow(1, heads + key_heads, key_heads)?;
        // One rotary embedding for queries and keys together.
        let mut qk = qkv.narrow(1, 0, heads + key_heads)?.contiguous()?;
        if let Some([q, k]) = &self.norms {
            let q = ops::rms_norm(&qk.narrow(1, 0, heads)?.contiguous()?, q, eps)?;
            let k = ops::rms_norm(&qk.narrow(1, heads, key_heads)?.contiguous()?, k, eps)?;
            qk = Tensor::cat(&[q, k], 1)?;
        }
        let qk = rotary_emb::rope_thd(&qk.unsqueeze(0)?, cos, sin)?.squeeze(0)?;
        let (q, k) = (qk.narrow(1, 0, heads)?, qk.narrow(1, heads, key_heads)?);
        let o = attention.attend(index, &q, &k, &v)?.reshape((rows, heads * columns))?;
        let x = (x + product(&o, &self.out)?)?;
        let inner = product(&ops::rms_norm(&x, &self.before_mlp, eps)?, &self.gate_up)?;
        Ok((x + product(&ops::swiglu(&inner)?, &self.down)?)?)
    }
}

fn turns(config: &Config, positions: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let frequencies = config.frequencies();
    let pairs = frequencies.len();
    let frequencies = Tensor::from_vec(frequencies, (1, pairs), device)?;
    let positions = Tensor::arange(0u32, positions as u32, device)?.to_dtype(DType::F32)?.unsqueeze(1)?;
    let angles = positions.broadcast_mul(&frequencies)?;
    Ok([angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?])
}
