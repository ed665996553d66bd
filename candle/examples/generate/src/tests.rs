//! The whole of it on the CPU, with a checkpoint that was just made.
use crate::config::{Config, Ends, Scaling};
use crate::engine::{Engine, Event, Settings};
use crate::model::{Attention, Model};
use crate::plain::Plain;
use crate::step::Part;
use crate::weights::{Dice, Weights};
use crate::{check, text, tiny};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use std::collections::HashMap;
use std::path::PathBuf;

/// The plain path, which has room for so many tokens.
struct Room {
    plain: Plain,
    whole: usize,
    taken: HashMap<usize, usize>,
}

impl Attention for Room {
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

fn room(whole: usize) -> Box<Room> {
    Box::new(Room { plain: Plain::new(None), whole, taken: HashMap::new() })
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
    let mut engine = Engine::new(model, room(whole), settings);
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
    // Everything at once; one piece after the other; fewer seats than requests; hardly any room.
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
    let mut engine = Engine::new(&model, room(128), settings(1, 64));
    for (prompt, limit, word) in [
        (vec![], 1, "without a token"),
        (vec![1], 0, "no token"),
        (vec![1, 999], 1, "vocabulary of 258"),
        (vec![1; 120], 9, "room for 128"),
    ] {
        let error = engine.submit(prompt, limit).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(engine.is_idle());
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
    // Attention that sees the last keys only.
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
    // The second request is done before the first one.
    printer.token(1, b'y'.into(), true).unwrap();
    for (index, token) in rest.iter().enumerate() {
        printer.token(0, *token, index + 1 == rest.len()).unwrap();
    }
    assert_eq!(String::from_utf8(out).unwrap(), format!("{words}\nxy\n"));
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
    // Wavelengths from 2048 to 8192 are in between: by the definition, the mean of both at 2.5 rounds.
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
