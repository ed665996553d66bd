//! A small random checkpoint for tests: real file formats, and one token per byte.
use crate::config::Config;
use crate::weights::{Dice, Weights};
use anyhow::{Context, Result, bail};
use candle::{DType, Device, Tensor};
use serde_json::{Map, json};
use std::path::Path;

/// The tokens: 256 bytes, and the two tokens that begin and end a text.
const VOCABULARY: usize = 258;
const BEGIN: usize = 256;
const END: usize = 257;

/// The parts of a checkpoint.
const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` into a folder that has none of them.
///
/// # Errors
/// Returns an error if the folder already has one of the files, or if a file cannot be written.
pub fn make(folder: &Path, seed: u64, head_dim: usize) -> Result<()> {
    // A broken link also counts as an existing file.
    let there = FILES.iter().find(|name| folder.join(name).symlink_metadata().is_ok());
    if let Some(name) = there {
        bail!("{} already has {name}: name a folder without a checkpoint", folder.display());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let config = Config::tiny(head_dim, VOCABULARY);
    let written = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": head_dim,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
    });
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let [config_json, tokenizer_json, weights_file] = FILES;
    write(config_json, serde_json::to_string_pretty(&written)?)?;
    write(tokenizer_json, serde_json::to_string(&tokenizer())?)?;
    let mut dice = Dice::new(seed);
    let weights = Weights::random(&config, |[rows, columns], deviation| {
        let numbers: Vec<f32> = (0..rows * columns).map(|_| dice.normal() * deviation).collect();
        Ok(Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)?.to_dtype(DType::BF16)?)
    })?;
    weights.write(&folder.join(weights_file))
}

/// Returns a tokenizer: byte-level BPE without merges.
fn tokenizer() -> serde_json::Value {
    let mut vocabulary: Map<_, _> =
        (0..=255u8).map(|byte| (visible(byte).to_string(), json!(byte))).collect();
    let special = |id: usize, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let added = [special(BEGIN, "<s>"), special(END, "</s>")];
    vocabulary.insert("<s>".into(), json!(BEGIN));
    vocabulary.insert("</s>".into(), json!(END));
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [BEGIN], "tokens": ["<s>"] } },
        },
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

/// Returns the character for a byte in a byte-level vocabulary. A printable byte stands for itself. Other
/// bytes get the characters from U+0100 on, in order.
fn visible(byte: u8) -> char {
    let seen = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if seen(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !seen(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}
