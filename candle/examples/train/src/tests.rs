//! Short runs on the CPU.
use crate::curve;
use crate::model::{Attention, Model};
use crate::parameters::Parameters;
use crate::run::{Run, read};
use crate::sizes::Sizes;
use crate::text::Text;
use anyhow::Result;
use candle::{DType, Device};
use std::path::PathBuf;

const SIZES: Sizes = Sizes { layers: 2, hidden: 32, feed_forward: 48, heads: 4, key_heads: 2 };

fn start(attention: Attention, rank: Option<usize>) -> Result<Run> {
    let parameters = Parameters::random(&SIZES, rank, &Device::Cpu)?;
    let model = Model { sizes: SIZES, attention, dtype: DType::F32 };
    Ok(Run::new(model, parameters, 1e-2, &Device::Cpu))
}

fn train(run: &mut Run, steps: usize) -> Result<()> {
    let text = Text::new(include_bytes!("../sonnets.txt").to_vec(), 4, 16)?;
    while run.losses.len() < steps {
        run.step(&text)?;
    }
    Ok(())
}

/// A file that no other test has. It is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        File(std::env::temp_dir().join(format!("ferroflash-train-{}-{name}.safetensors", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn falls(losses: &[f32]) -> bool {
    let (first, last) = losses.split_at(losses.len() / 2);
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    mean(last) < mean(first) - 0.2
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference <= tolerance, "{difference}: {a:?}, {b:?}");
}

#[test]
fn losses_are_the_plain_ones_and_fall() -> Result<()> {
    let (mut flash, mut plain) = (start(Attention::Flash, None)?, start(Attention::Plain, None)?);
    train(&mut flash, 20)?;
    train(&mut plain, 20)?;
    assert_close(&flash.losses, &plain.losses, 1e-3);
    assert!(falls(&flash.losses), "{:?}", flash.losses);
    Ok(())
}

#[test]
fn lora_trains_its_own_matrices() -> Result<()> {
    let file = File::new("base");
    let mut base = start(Attention::Flash, None)?;
    train(&mut base, 12)?;
    base.save(&file.0)?;
    let (mut flash, mut plain) = (start(Attention::Flash, Some(4))?, start(Attention::Plain, Some(4))?);
    for run in [&mut flash, &mut plain] {
        run.parameters.load(&read(&file.0, &Device::Cpu)?)?;
        train(run, 10)?;
    }
    assert_close(&flash.losses, &plain.losses, 1e-3);
    assert!(flash.losses[0] < base.losses[0] - 1.0, "it begins with the base model: {:?}", flash.losses);
    for (name, frozen) in &flash.parameters.frozen {
        let change = (frozen - base.parameters.get(name, DType::F32)?)?.abs()?.flatten_all()?.max(0)?;
        assert_eq!(change.to_scalar::<f32>()?, 0.0, "{name}");
    }
    for (name, var) in flash.parameters.trained.iter().filter(|(name, _)| name.ends_with("lora_b")) {
        assert!(var.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()? > 0.0, "{name} has a gradient");
    }
    Ok(())
}

#[test]
fn a_run_resumes() -> Result<()> {
    let file = File::new("resumed");
    let mut whole = start(Attention::Flash, None)?;
    train(&mut whole, 8)?;
    let mut first = start(Attention::Flash, None)?;
    train(&mut first, 4)?;
    first.save(&file.0)?;
    let mut second = start(Attention::Flash, None)?;
    second.resume(&file.0)?;
    train(&mut second, 8)?;
    assert_close(&second.losses, &whole.losses, 1e-5);
    Ok(())
}

/// A checkpoint continues no run of other sizes, and none with other LoRA matrices, because the next
/// checkpoint would lack its tensors.
#[test]
fn checkpoints_of_other_models_are_refused() -> Result<()> {
    let whole = File::new("whole");
    start(Attention::Flash, None)?.save(&whole.0)?;
    let lora = File::new("lora");
    start(Attention::Flash, Some(4))?.save(&lora.0)?;
    for (file, sizes, rank, words) in [
        (&whole, Sizes { feed_forward: 64, ..SIZES }, None, "in the checkpoint: the model's sizes say"),
        (&whole, Sizes { layers: 1, ..SIZES }, None, "and this model has not: give the sizes"),
        (&whole, Sizes { layers: 3, ..SIZES }, None, "has no model.layers.2."),
        (&lora, SIZES, None, "give its rank with --lora"),
        (&lora, SIZES, Some(8), "in the checkpoint: the model's sizes say"),
    ] {
        let mut other = Parameters::random(&sizes, rank, &Device::Cpu)?;
        let error = other.load(&read(&file.0, &Device::Cpu)?).expect_err(words).to_string();
        assert!(error.contains(words), "{error}; not {words}");
    }
    let error = start(Attention::Flash, Some(4))?.resume(&whole.0).expect_err("no LoRA").to_string();
    assert!(error.ends_with("with its weights: --from"), "{error}");
    start(Attention::Flash, Some(4))?.resume(&lora.0)
}

#[test]
fn the_curve_has_a_point_per_loss() {
    let svg = curve::svg(&[5.0, 4.0, f32::NAN, 3.0]);
    assert!(svg.contains(r#"points="40.0,40.0 253.3,180.0 680.0,320.0 ""#), "{svg}");
    assert!(svg.contains(">5.00</text>") && svg.contains(">3.00</text>"), "{svg}");
    assert!(!curve::svg(&[]).contains("inf"), "a run without steps");
}
