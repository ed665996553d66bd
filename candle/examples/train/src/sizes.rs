//! The sizes of a model, and its weights' names.
use anyhow::{Result, ensure};

/// The tokens are bytes.
const VOCABULARY: usize = 256;

/// The sizes of a model.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Sizes {
    /// Layers
    #[arg(long, default_value_t = 2)]
    pub layers: usize,
    /// Columns of the residual stream
    #[arg(long, default_value_t = 128)]
    pub hidden: usize,
    /// Columns of the feed-forward part
    #[arg(long, default_value_t = 256)]
    pub feed_forward: usize,
    /// Query heads
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Key heads
    #[arg(long, default_value_t = 2)]
    pub key_heads: usize,
}

impl Sizes {
    /// Checks that heads divide what they share.
    ///
    /// # Errors
    /// Returns an error that names the size.
    pub fn check(&self) -> Result<()> {
        let Sizes { hidden, heads, key_heads, .. } = *self;
        ensure!(
            key_heads > 0 && heads % key_heads == 0,
            "{heads} query heads are no multiple of {key_heads} key heads"
        );
        let is_whole = heads > 0 && hidden % heads == 0 && (hidden / heads) % 8 == 0;
        ensure!(is_whole, "{heads} heads of {hidden} columns: a head must have a multiple of 8 columns");
        Ok(())
    }

    /// Returns the number of columns of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Returns names and shapes of the weights, `[out, in]`. A norm's shape is `[1, columns]`.
    pub fn weights(&self) -> Vec<(String, [usize; 2])> {
        let Sizes { layers, hidden, feed_forward, key_heads, .. } = *self;
        let narrow = key_heads * self.head_dim();
        let mut all = vec![("model.embed_tokens.weight".into(), [VOCABULARY, hidden])];
        for layer in 0..layers {
            for (part, shape) in [
                ("input_layernorm", [1, hidden]),
                ("self_attn.q_proj", [hidden, hidden]),
                ("self_attn.k_proj", [narrow, hidden]),
                ("self_attn.v_proj", [narrow, hidden]),
                ("self_attn.o_proj", [hidden, hidden]),
                ("post_attention_layernorm", [1, hidden]),
                ("mlp.gate_proj", [feed_forward, hidden]),
                ("mlp.up_proj", [feed_forward, hidden]),
                ("mlp.down_proj", [hidden, feed_forward]),
            ] {
                all.push((format!("model.layers.{layer}.{part}.weight"), shape));
            }
        }
        all.extend([
            ("model.norm.weight".into(), [1, hidden]),
            ("lm_head.weight".into(), [VOCABULARY, hidden]),
        ]);
        all
    }
}
