//! Tests of the whole program on the CPU, with a new random checkpoint.
use crate::config::{Config, Ends, Scaling};
use crate::engine::{Engine, Event, Settings};
use crate::model::{Attention, Model};
use crate::plain::Plain;
use crate::step::{Asked, Chunk, Part, Step};
use crate::weights::{Dice, Weights};
use crate::{Cli, check, text, tiny};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2, qwen3};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;

/// The plain path, limited to this number of tokens.
struct Limited {
    plain: Plain,
    whole: usize,
    taken: HashMap<usize, usize>,
}

impl Attention for Limited {
    fn most(&self) -> usize {
        self.whole
    }

    fn admit(&mut self, sequence: usize, tokens: usize) -> Result<bool> {
        let fits = self.taken.values().sum::<usize>() + tokens <= self.whole;
        self.taken.extend(fits.then_some((sequence, tokens)));
        Ok(fits)
    }

    fn begin(&mut self, parts: &[Part]) -> Result<()> {
        assert!(parts.iter().all(|part| self.taken.contains_key(&part.sequence)));
        self.plain.begin(parts)
    }

    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        self.plain.attend(layer, q, k, v)
    }

    fn forget(&mut self, sequence: usize) {
        self.taken.remove(&sequence).unwrap();
        self.plain.forget(sequence);
    }
}

fn limited(whole: usize) -> Box<Limited> {
    Box::new(Limited { plain: Plain::new(None), whole, taken: HashMap::new() })
}

struct Folder(PathBuf);

impl Folder {
    fn tiny(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ferroflash-generate-{}-{name}", std::process::id()));
        tiny::make(&folder, 1, 64).unwrap();
        Folder(folder)
    }

    fn model(&self, dtype: DType) -> Model {
        let weights = Weights::read(&self.0, Some(dtype), &Device::Cpu).unwrap();
        Model::new(&Config::read(&self.0).unwrap(), &weights, 256).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(seats: usize, chunk: usize) -> Settings {
    Settings { seats, chunk, page: 16, pages: 0, positions: 256, temperature: 0.0, ends: Vec::new() }
}

fn prompts(lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut dice = Dice::new(3);
    lengths.iter().map(|length| (0..*length).map(|_| dice.below(256) as u32).collect()).collect()
}

fn answers(model: &Model, settings: Settings, whole: usize, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut engine = Engine::new(model, limited(whole), settings);
    for prompt in prompts {
        engine.submit(prompt.clone(), 12).unwrap();
    }
    let mut all = vec![Vec::new(); prompts.len()];
    while !engine.is_idle() {
        for Event { request, token, .. } in engine.step().unwrap() {
            all[request].push(token);
        }
    }
    all
}

#[test]
fn answers_do_not_depend_on_who_shares_a_step() {
    let folder = Folder::tiny("steps");
    let (model, prompts) = (folder.model(DType::F32), prompts(&[1, 40, 3, 17, 64]));
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .flat_map(|prompt| answers(&model, settings(1, 1000), 80, std::slice::from_ref(prompt)))
        .collect();
    // The cases: all requests in one batch; prompts in small chunks; fewer seats than requests; few free
    // tokens.
    for (seats, chunk, whole) in [(5, 1000, 999), (5, 7, 999), (2, 16, 999), (5, 16, 80)] {
        assert_eq!(
            answers(&model, settings(seats, chunk), whole, &prompts),
            alone,
            "{seats} {chunk} {whole}"
        );
    }
}

#[test]
fn a_text_ends_where_the_model_says() {
    let folder = Folder::tiny("ends");
    let (model, prompts) = (folder.model(DType::F32), prompts(&[9]));
    let whole = answers(&model, settings(1, 64), 80, &prompts).remove(0);
    let ends = vec![whole[4]];
    let until = whole.iter().position(|token| *token == whole[4]).unwrap();
    let ended = answers(&model, Settings { ends, ..settings(1, 64) }, 80, &prompts);
    assert_eq!(ended, [&whole[..=until]]);
}

#[test]
fn requests_that_cannot_be_answered_are_refused() {
    let folder = Folder::tiny("refused");
    let model = folder.model(DType::F32);
    let mut engine = Engine::new(&model, limited(128), settings(1, 64));
    for (prompt, limit, word) in [
        (vec![], 1, "without a token"),
        (vec![1], 0, "0 tokens"),
        (vec![1, 999], 1, "vocabulary size 258"),
        (vec![1; 120], 9, "120 tokens and 9 new tokens; there is room for 128 tokens, so for 8"),
        (vec![1], usize::MAX, "so for 127 new tokens"),
    ] {
        let error = engine.submit(prompt, limit).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(engine.is_idle());
}

#[test]
fn what_is_asked_for_is_checked() {
    for (words, reason) in [
        (&["--temperature", "nan"][..], "0 or above, and finite"),
        (&["--temperature", "-1"], "0 or above, and finite"),
        (&["--temperature=inf"], "0 or above, and finite"),
        (&["-t", "0"], "--tokens"),
        (&["--tokens", "-1"], "--tokens"),
    ] {
        let words = ["generate", "run", "folder"].iter().chain(words);
        let error = Cli::try_parse_from(words).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let run = Cli::try_parse_from(["generate", "run", "folder", "-p", ""]).unwrap();
    assert!(run.run().unwrap_err().to_string().contains("empty prompt"));
}

#[test]
fn a_checkpoint_is_not_written_over() {
    let folder = Folder::tiny("twice");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let error = tiny::make(&folder.0, 2, 64).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        std::fs::remove_file(folder.0.join(name)).unwrap();
    }
    tiny::make(&folder.0, 2, 64).unwrap();
}

#[test]
fn a_check_passes_what_is_right_and_nothing_else() {
    let folder = Folder::tiny("check");
    let (half, exact) = (folder.model(DType::BF16), folder.model(DType::F32));
    let worst = |window| {
        let (plain, prompts) = (Box::new(Plain::new(window)), prompts(&[30, 5, 50]));
        let all = check::check([&half, &exact], plain, &settings(3, 20), &prompts, 20).unwrap();
        assert!(all.iter().all(|verdict| verdict.tokens == 20));
        all.iter().map(|verdict| verdict.worst).fold(0.0, f32::max)
    };
    assert!(worst(None) <= 1.0);
    // This attention sees only the last keys.
    assert!(worst(Some(4)) > 1.0);
}

#[test]
fn texts_come_out_as_they_went_in() {
    let folder = Folder::tiny("text");
    let tokenizer = text::tokenizer(&folder.0).unwrap();
    let words = "naïve 日本 \n done";
    let tokens = text::encode(&tokenizer, words).unwrap();
    assert_eq!((tokens[0], tokens.len()), (256, words.len() + 1));
    let mut out = Vec::new();
    let (first, rest) = tokens.split_at(3);
    let mut printer = text::Printer::new(&tokenizer, &mut out, &[first.to_vec(), vec![b'x'.into()]]);
    // The second request ends before the first one.
    printer.token(1, b'y'.into(), true).unwrap();
    for (index, token) in rest.iter().enumerate() {
        printer.token(0, *token, index + 1 == rest.len()).unwrap();
    }
    assert_eq!(String::from_utf8(out).unwrap(), format!("{words}\nxy\n"));
}

/// Returns the logits after a text's last token, by candle-transformers' models and by this program's models.
fn last_logits(kind: &str, text: &[u32]) -> [Vec<f32>; 2] {
    let folder = Folder::tiny(kind);
    let (json, file) = (folder.0.join("config.json"), folder.0.join("model.safetensors"));
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let mut tensors = candle::safetensors::load(&file, &Device::Cpu).unwrap();
    let mut dice = Dice::new(4);
    let mut put = |name: String, rows: usize, mean: f32| {
        let numbers: Vec<f32> = (0..rows).map(|_| mean + dice.normal() / 2.0).collect();
        tensors.insert(name, Tensor::new(numbers, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap());
    };
    config["model_type"] = kind.into();
    if kind != "llama" {
        for (key, value) in [("hidden_act", json!("silu")), ("max_window_layers", json!(2))] {
            config[key] = value;
        }
        for (key, value) in [("use_sliding_window", false), ("attention_bias", false)] {
            config[key] = value.into();
        }
        // Qwen2's config needs a number in this field, and Qwen's rotary embedding has no scaling.
        config["sliding_window"] = 4096.into();
        config.as_object_mut().unwrap().remove("rope_scaling");
    }
    for layer in 0..2 {
        let at = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        match kind {
            "qwen2" => [("q", 256), ("k", 128), ("v", 128)]
                .into_iter()
                .for_each(|(part, rows)| put(at(&format!("{part}_proj.bias")), rows, 0.0)),
            "qwen3" => {
                ["q", "k"].into_iter().for_each(|part| put(at(&format!("{part}_norm.weight")), 64, 1.0))
            }
            _ => {}
        }
    }
    candle::safetensors::save(&tensors, &file).unwrap();
    std::fs::write(&json, config.to_string()).unwrap();

    let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let input = Tensor::new(text, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let theirs = match kind {
        "llama" => {
            let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
            let config = config.into_config(false);
            let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
            llama::Llama::load(weights, &config).unwrap().forward(&input, 0, &mut cache)
        }
        "qwen2" => {
            let config = serde_json::from_value(config).unwrap();
            qwen2::ModelForCausalLM::new(&config, weights).unwrap().forward(&input, 0)
        }
        _ => {
            let config = serde_json::from_value(config).unwrap();
            qwen3::ModelForCausalLM::new(&config, weights).unwrap().forward(&input, 0)
        }
    };
    let model = folder.model(DType::F32);
    let chunk = Chunk { sequence: 0, start: 0, tokens: text, asked: Asked::Last };
    let step = Step::new(vec![chunk], &Device::Cpu).unwrap();
    let ours = model.forward(&step, &mut Plain::new(None)).unwrap().unwrap();
    [theirs.unwrap(), ours].map(|logits| logits.flatten_all().unwrap().to_vec1().unwrap())
}

#[test]
fn models_are_those_of_candle_transformers() {
    let text = &prompts(&[200])[0];
    for kind in ["llama", "qwen2", "qwen3"] {
        let [theirs, ours] = last_logits(kind, text);
        let most = theirs.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let apart = theirs.iter().zip(&ours).fold(0f32, |apart, (a, b)| apart.max((a - b).abs()));
        assert!(most > 1.0 && apart <= 1e-4 * most, "{kind}: {apart} of {most}");
    }
}

#[test]
fn llama3_turns_slow_pairs_slower() {
    let mut config = Config::tiny(128, 258);
    let plain = config.frequencies();
    config.rope_scaling = Some(Scaling {
        rope_type: "llama3".into(),
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
        rope_theta: None,
    });
    let scaled = config.frequencies();
    assert_eq!((scaled[0], scaled[63]), (plain[0], plain[63] / 8.0));
    // Wavelengths from 2048 to 8192 lie between the two bounds. At 2.5 rotations, the definition gives the
    // mean of both frequencies.
    for (scaled, plain) in scaled.iter().zip(&plain) {
        let rounds = 8192.0 * plain / std::f32::consts::TAU;
        let right = match rounds {
            4.0.. => *plain,
            1.0..4.0 => plain * ((rounds - 1.0) / 3.0 + (4.0 - rounds) / 3.0 / 8.0),
            _ => plain / 8.0,
        };
        assert!((scaled - right).abs() <= 1e-6 * right);
    }
    config.eos_token_id = Ends::Many(vec![1, 2]);
    assert_eq!(config.ends(), [1, 2]);
}
