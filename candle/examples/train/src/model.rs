//! A model of Llama's architecture, for training.
use crate::parameters::Parameters;
use crate::sizes::Sizes;
use anyhow::Result;
use candle::{D, DType, Device, Tensor};
use candle_nn::{ops, rotary_emb};

const EPSILON: f32 = 1e-5;
const THETA: f32 = 10_000.0;

/// The computation of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// FerroFlash's operation, with its gradient.
    Flash,
    /// Products and a softmax in f32, with candle's gradients.
    Plain,
}

/// A model: how it computes, without its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its sizes.
    pub sizes: Sizes,
    /// The computation of attention.
    pub attention: Attention,
    /// The dtype of the computation.
    pub dtype: DType,
}

impl Model {
    /// Returns the mean loss of predicting each next token, for tokens u32 `[batch, context + 1]`.
    ///
    /// # Errors
    /// Returns an error if a parameter is missing, or the device fails.
    pub fn loss(&self, parameters: &Parameters, tokens: &Tensor) -> Result<Tensor> {
        let (batch, tokens_of_row) = tokens.dims2()?;
        let context = tokens_of_row - 1;
        let (inputs, targets) = (tokens.narrow(1, 0, context)?, tokens.narrow(1, 1, context)?);
        let embedding = parameters.get("model.embed_tokens.weight", self.dtype)?;
        let mut x = embedding.index_select(&inputs.flatten_all()?, 0)?;
        let turns = self.turns(context, tokens.device())?;
        for layer in 0..self.sizes.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let normed = self.norm(parameters, &name("input_layernorm"), &x)?;
            let heads = |part: &str, heads: usize| -> Result<Tensor> {
                let y = parameters.product(&name(part), &normed)?;
                Ok(y.reshape((batch, context, heads, self.sizes.head_dim()))?)
            };
            let Sizes { heads: of_q, key_heads, .. } = self.sizes;
            let turned = |x: Tensor| -> Result<Tensor> {
                let x = x.transpose(1, 2)?.contiguous()?;
                Ok(rotary_emb::rope_slow(&x, &turns[0], &turns[1])?.transpose(1, 2)?)
            };
            let (q, k) =
                (turned(heads("self_attn.q_proj", of_q)?)?, turned(heads("self_attn.k_proj", key_heads)?)?);
            let o = self.attend(&q, &k, &heads("self_attn.v_proj", key_heads)?)?;
            let o = o.reshape((batch * context, self.sizes.hidden))?;
            x = (x + parameters.product(&name("self_attn.o_proj"), &o)?)?;
            let normed = self.norm(parameters, &name("post_attention_layernorm"), &x)?;
            let gate = parameters.product(&name("mlp.gate_proj"), &normed)?.silu()?;
            let inner = (gate * parameters.product(&name("mlp.up_proj"), &normed)?)?;
            x = (x + parameters.product(&name("mlp.down_proj"), &inner)?)?;
        }
        let x = self.norm(parameters, "model.norm.weight", &x)?;
        let logits = parameters.product("lm_head.weight", &x)?.to_dtype(DType::F32)?;
        Ok(candle_nn::loss::cross_entropy(&logits, &targets.flatten_all()?)?)
    }

    fn norm(&self, parameters: &Parameters, name: &str, x: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm_slow(x, &parameters.get(name, self.dtype)?, EPSILON)?)
    }

    /// Computes causal attention of `[batch, context, heads, head dim]`.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (batch, context, heads, columns) = q.dims4()?;
        let scale = (columns as f32).powf(-0.5);
        if self.attention == Attention::Flash {
            return Ok(ferroflash_candle::flash_attn(q, k, v, scale, true)?);
        }
        let key_heads = self.sizes.key_heads;
        let wide = |x: &Tensor| -> Result<Tensor> {
            let shape = (batch, key_heads, heads / key_heads, context, columns);
            let x = x.to_dtype(DType::F32)?.transpose(1, 2)?.unsqueeze(2)?.broadcast_as(shape)?;
            Ok(x.reshape((batch, heads, context, columns))?.contiguous()?)
        };
        let q = q.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?;
        let hidden =
            (0..context).flat_map(|i| (0..context).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }));
        let hidden = Tensor::from_iter(hidden, q.device())?.reshape((context, context))?;
        let scores = (q.matmul(&wide(k)?.t()?)? * f64::from(scale))?.broadcast_add(&hidden)?;
        let o = ops::softmax(&scores, D::Minus1)?.matmul(&wide(v)?)?;
        Ok(o.transpose(1, 2)?.to_dtype(self.dtype)?)
    }

    /// Returns cosines and sines of the positions, `[positions, head dim / 2]`.
    fn turns(&self, positions: usize, device: &Device) -> Result<[Tensor; 2]> {
        let columns = self.sizes.head_dim();
        let turn = |pair: usize| THETA.powf(-2.0 * pair as f32 / columns as f32);
        let angles = (0..positions).flat_map(|at| (0..columns / 2).map(move |pair| at as f32 * turn(pair)));
        let angles = Tensor::from_iter(angles, device)?.reshape((positions, columns / 2))?;
        Ok([angles.cos()?.to_dtype(self.dtype)?, angles.sin()?.to_dtype(self.dtype)?])
    }
}
