//! `config.json` of a checkpoint, as Hugging Face writes it for models of Llama's family.
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::Path;

/// A model of Llama's family: its sizes and its rotary embedding.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `llama`, `mistral`, `qwen2` or `qwen3`.
    pub model_type: String,
    /// Columns of the residual stream.
    pub hidden_size: usize,
    /// Columns of the two halves of the feed-forward part.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key heads; if the file names none, the number of query heads.
    pub num_key_value_heads: Option<usize>,
    /// Columns of a head; if the file names none, `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// The epsilon of RMS norm, which is added to a mean square before the root.
    pub rms_norm_eps: f32,
    /// Base of the positions' frequencies.
    #[serde(default)]
    pub rope_theta: Option<f32>,
    /// Scaling of the frequencies for longer contexts.
    #[serde(default, alias = "rope_parameters")]
    pub rope_scaling: Option<Scaling>,
    /// The longest context of the model's training.
    pub max_position_embeddings: usize,
    /// Whether the last layer uses the weights of the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// End-of-text tokens.
    #[serde(default)]
    pub eos_token_id: Ends,
    /// Number of visible keys, including the query's own; `None` is all.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// Qwen2's switch for the window.
    #[serde(default)]
    pub use_sliding_window: Option<bool>,
}

/// Scaling of the frequencies for longer contexts.
#[derive(Clone, Debug, Deserialize)]
pub struct Scaling {
    /// `llama3`, `linear`, or `default`, which changes nothing.
    #[serde(alias = "type")]
    pub rope_type: String,
    /// Factor between the new and the old context length.
    #[serde(default = "one")]
    pub factor: f32,
    /// For `llama3`: if a wavelength is above `original_max_position_embeddings` divided by this factor, it
    /// becomes longer.
    #[serde(default = "one")]
    pub low_freq_factor: f32,
    /// For `llama3`: if a wavelength is below `original_max_position_embeddings` divided by this factor, it
    /// does not change.
    #[serde(default = "one")]
    pub high_freq_factor: f32,
    /// For `llama3`: the old context length.
    #[serde(default)]
    pub original_max_position_embeddings: usize,
    /// The base of the frequencies. Newer files have `rope_theta` in this object.
    #[serde(default)]
    pub rope_theta: Option<f32>,
}

fn one() -> f32 {
    1.0
}

/// The end-of-text tokens of a checkpoint: a list, one token, or none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Ends {
    /// Several tokens.
    Many(Vec<u32>),
    /// One token.
    One(u32),
    /// No token.
    #[default]
    None,
}

impl Config {
    /// Reads and checks `config.json` in a folder.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or this program does not support the model.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let config: Config = serde_json::from_str(&text)
            .with_context(|| format!("{}: this model is not of Llama's family", path.display()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let family = ["llama", "mistral", "qwen2", "qwen3"];
        ensure!(
            family.contains(&self.model_type.as_str()),
            "model_type {:?} is not supported; supported are {}",
            self.model_type,
            family.join(", ")
        );
        let (heads, keys, columns) = (self.num_attention_heads, self.key_heads(), self.head_dim());
        ensure!(keys > 0 && heads % keys == 0, "{heads} query heads are not a multiple of {keys} key heads");
        ensure!(columns > 0 && columns % 8 == 0, "a head of {columns} columns: it must be a multiple of 8");
        ensure!(
            self.use_sliding_window != Some(true) || self.sliding_window.is_none(),
            "windows in some layers only (use_sliding_window) are not supported"
        );
        if let Some(Scaling { rope_type, .. }) = &self.rope_scaling
            && !["default", "linear", "llama3"].contains(&rope_type.as_str())
        {
            bail!("rope_type {rope_type:?} is not supported; supported are default, linear and llama3");
        }
        Ok(())
    }

    /// Returns the sizes of Llama 3.2 1B, with a last layer separate from its embedding: 1.5e9 parameters.
    pub fn billion() -> Self {
        Config {
            hidden_size: 2048,
            intermediate_size: 8192,
            num_hidden_layers: 16,
            num_attention_heads: 32,
            num_key_value_heads: Some(8),
            max_position_embeddings: 131_072,
            tie_word_embeddings: false,
            ..Config::tiny(64, 128_256)
        }
    }

    /// Returns a model for tests: four query heads, two key heads, two layers.
    pub fn tiny(head_dim: usize, vocab_size: usize) -> Self {
        Config {
            model_type: "llama".into(),
            hidden_size: 256,
            intermediate_size: 512,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: Some(2),
            head_dim: Some(head_dim),
            vocab_size,
            rms_norm_eps: 1e-5,
            rope_theta: Some(500_000.0),
            rope_scaling: None,
            max_position_embeddings: 8192,
            tie_word_embeddings: true,
            eos_token_id: Ends::None,
            sliding_window: None,
            use_sliding_window: None,
        }
    }

    /// Returns the number of key heads.
    pub fn key_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the number of columns of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Returns the number of visible keys before a query's position; `None` is all.
    pub fn window(&self) -> Option<usize> {
        let off = self.use_sliding_window == Some(false);
        self.sliding_window
            .filter(|keys| !off && *keys < self.max_position_embeddings)
            .map(|keys| keys.max(1) - 1)
    }

    /// Returns the end-of-text tokens.
    pub fn ends(&self) -> Vec<u32> {
        match &self.eos_token_id {
            Ends::Many(all) => all.clone(),
            Ends::One(end) => vec![*end],
            Ends::None => Vec::new(),
        }
    }

    /// Returns the rotation of each pair of columns from one position to the next, in radians.
    pub fn frequencies(&self) -> Vec<f32> {
        let columns = self.head_dim();
        let inside = self.rope_scaling.as_ref().and_then(|scaling| scaling.rope_theta);
        let theta = self.rope_theta.or(inside).unwrap_or(10_000.0);
        let plain = (0..columns / 2).map(|pair| theta.powf(-2.0 * pair as f32 / columns as f32));
        match &self.rope_scaling {
            Some(scaling) => plain.map(|frequency| scaling.apply(frequency)).collect(),
            None => plain.collect(),
        }
    }
}

impl Scaling {
    fn apply(&self, frequency: f32) -> f32 {
        match self.rope_type.as_str() {
            "linear" => frequency / self.factor,
            "llama3" => {
                // The number of rotations of this pair within the old context. The frequency of pairs with
                // many rotations stays the same. The frequency of pairs with few rotations is divided by
                // `factor`. Between them, the frequency is interpolated.
                let rounds =
                    self.original_max_position_embeddings as f32 * frequency / (2.0 * std::f32::consts::PI);
                let stays = (rounds - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
                let stays = stays.clamp(0.0, 1.0);
                frequency * (stays + (1.0 - stays) / self.factor)
            }
            _ => frequency,
        }
    }
}
