//! A model's tensors: from safetensors files, or random from a seed.
use crate::config::Config;
use anyhow::{Context, Result, bail, ensure};
use candle::safetensors::{BufferedSafetensors, Load};
use candle::{DType, Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Tensors by their names in the checkpoint. All are on one device and of one type.
pub struct Weights {
    tensors: HashMap<String, Tensor>,
}

impl Weights {
    /// Reads every `*.safetensors` of a folder, and prints progress.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, is not safetensors, or does not fit on the device.
    pub fn read(folder: &Path, dtype: Option<DType>, device: &Device) -> Result<Self> {
        let files = files(folder)?;
        let bytes = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<Result<u64>>()?;
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}")?;
        let bar = ProgressBar::new(bytes).with_style(style).with_message("loading");
        let mut tensors = HashMap::new();
        for file in &files {
            let here = || format!("in {}", file.display());
            let mut data = Vec::with_capacity(file.metadata()?.len() as usize);
            bar.wrap_read(File::open(file).with_context(here)?).read_to_end(&mut data).with_context(here)?;
            let file = BufferedSafetensors::new(data).with_context(here)?;
            for (name, view) in file.tensors() {
                let tensor = view.load(device).with_context(|| format!("{name} {}", here()))?;
                tensors.insert(name, tensor.to_dtype(dtype.unwrap_or(half(tensor.dtype())))?);
            }
        }
        bar.finish_and_clear();
        Ok(Weights { tensors })
    }

    /// Draws random weights. The weights' scale keeps activations from vanishing and overflowing. Weights of
    /// scores are larger, so that attention is not uniform.
    ///
    /// # Errors
    /// Returns an error if the weights do not fit on the device.
    pub fn random(
        config: &Config,
        mut normal: impl FnMut([usize; 2], f32) -> Result<Tensor>,
    ) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let queries = config.num_attention_heads * config.head_dim();
        let keys = config.key_heads() * config.head_dim();
        let mut tensors = HashMap::new();
        let mut put = |name: String, rows: usize, columns: usize, gain: f32| -> Result<()> {
            tensors.insert(name + ".weight", normal([rows, columns], gain / (columns as f32).sqrt())?);
            Ok(())
        };
        let whole = (hidden as f32).sqrt();
        let tied = config.tie_word_embeddings;
        put("model.embed_tokens".into(), config.vocab_size, hidden, if tied { 1.0 } else { whole })?;
        if !tied {
            put("lm_head".into(), config.vocab_size, hidden, 1.0)?;
        }
        for layer in 0..config.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{layer}.{part}");
            put(at("self_attn.q_proj"), queries, hidden, 1.5)?;
            put(at("self_attn.k_proj"), keys, hidden, 1.5)?;
            put(at("self_attn.v_proj"), keys, hidden, 1.0)?;
            put(at("self_attn.o_proj"), hidden, queries, 1.0)?;
            put(at("mlp.gate_proj"), inner, hidden, 1.0)?;
            put(at("mlp.up_proj"), inner, hidden, 1.0)?;
            put(at("mlp.down_proj"), hidden, inner, 1.0)?;
        }
        let one = tensors["model.embed_tokens.weight"].zeros_like()?.narrow(0, 0, 1)?.squeeze(0)?;
        let one = (one.contiguous()? + 1.0)?;
        for layer in 0..config.num_hidden_layers {
            for part in ["input_layernorm", "post_attention_layernorm"] {
                tensors.insert(format!("model.layers.{layer}.{part}.weight"), one.clone());
            }
        }
        tensors.insert("model.norm.weight".into(), one);
        Ok(Weights { tensors })
    }

    /// Returns the weights in another dtype.
    ///
    /// # Errors
    /// Returns an error if the weights do not fit on the device.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let converted = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.to_dtype(dtype)?));
        Ok(Weights { tensors: self.tensors.iter().map(converted).collect::<Result<_>>()? })
    }

    /// Writes the tensors into one file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(candle::safetensors::save(&self.tensors, path)?)
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.tensors.values().map(Tensor::elem_count).sum()
    }

    /// Returns a tensor of this shape.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, or has another shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.tensors.get(name).with_context(|| format!("the checkpoint has no {name}"))?;
        let found = tensor.dims();
        ensure!(found == shape, "{name} is {found:?} in the checkpoint, but config.json requires {shape:?}");
        Ok(tensor.clone())
    }

    /// Returns a tensor of this shape, or `None` if it is missing.
    ///
    /// # Errors
    /// Returns an error if the tensor has another shape.
    pub fn maybe(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        self.tensors.contains_key(name).then(|| self.get(name, shape)).transpose()
    }
}

/// Returns the dtype for kernels: the checkpoint's dtype, if it has 16 bits.
fn half(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F16 } else { DType::BF16 }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in listed {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{} contains no *.safetensors", folder.display());
    }
    files.sort();
    Ok(files)
}

/// Normally distributed numbers from a seed, equal on every machine.
pub struct Dice(u64);

impl Dice {
    /// Creates a stream from a seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Returns a random number (SplitMix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a normally distributed number (Box and Muller).
    pub fn normal(&mut self) -> f32 {
        let mut unit = || (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let (radius, angle) = ((-2.0 * (1.0 - unit()).ln()).sqrt(), std::f64::consts::TAU * unit());
        (radius * angle.cos()) as f32
    }
}
