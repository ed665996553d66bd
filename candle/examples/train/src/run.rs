//! A run: its steps, and the checkpoint from which it resumes.
use crate::adamw::AdamW;
use crate::model::Model;
use crate::parameters::Parameters;
use crate::text::Text;
use anyhow::{Context, Result, bail};
use candle::{Device, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// The state of a run.
pub struct Run {
    /// The model.
    pub model: Model,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    /// The learning rate.
    pub rate: f64,
    /// The loss of each step so far.
    pub losses: Vec<f32>,
    device: Device,
}

/// The checkpoint's names of the moments.
const MOMENTS: [&str; 2] = ["first_moment.", "second_moment."];
const LOSSES: &str = "losses";

impl Run {
    /// Creates a run before its first step.
    pub fn new(model: Model, parameters: Parameters, rate: f64, device: &Device) -> Self {
        let device = device.clone();
        Run { model, parameters, optimizer: AdamW::default(), rate, losses: Vec::new(), device }
    }

    /// Trains a step, and returns its loss.
    ///
    /// # Errors
    /// Returns an error if the device or the kernels fail.
    pub fn step(&mut self, text: &Text) -> Result<f32> {
        let step = self.losses.len();
        let loss = self.model.loss(&self.parameters, &text.at(step, &self.device)?)?;
        self.optimizer.step(&self.parameters, &loss.backward()?, self.rate, step)?;
        let loss = loss.to_scalar()?;
        self.losses.push(loss);
        Ok(loss)
    }

    /// Writes the parameters, the optimizer's moments and the losses, as safetensors.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let Parameters { trained, frozen, .. } = &self.parameters;
        let mut tensors: HashMap<String, Tensor> = HashMap::new();
        tensors.extend(frozen.iter().map(|(name, tensor)| (name.clone(), tensor.clone())));
        tensors.extend(trained.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())));
        for (name, moments) in &self.optimizer.moments {
            tensors.extend(
                MOMENTS
                    .iter()
                    .zip(moments)
                    .map(|(prefix, moment)| (format!("{prefix}{name}"), moment.clone())),
            );
        }
        tensors.insert(LOSSES.into(), Tensor::new(&self.losses[..], &Device::Cpu)?);
        // An interrupted program leaves the old checkpoint.
        let partial = path.with_extension("partial");
        candle::safetensors::save(&tensors, &partial)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(std::fs::rename(&partial, path)?))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Continues the run of a checkpoint.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or belongs to another model.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let mut tensors = read(path, &self.device)?;
        if let Some(name) = self.parameters.trained.keys().find(|name| !tensors.contains_key(*name)) {
            let remedy = "begin another folder with its weights: --from";
            bail!("{} was not a run that trains {name}; {remedy}", path.display());
        }
        self.parameters.load(&tensors)?;
        let losses = tensors.get(LOSSES).with_context(|| format!("{} has no losses", path.display()))?;
        self.losses = losses.to_vec1()?;
        for name in self.parameters.trained.keys() {
            if let [Some(m), Some(v)] = MOMENTS.map(|prefix| tensors.remove(&format!("{prefix}{name}"))) {
                self.optimizer.moments.insert(name.clone(), [m, v]);
            }
        }
        Ok(())
    }
}

/// Reads the tensors of a checkpoint.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn read(path: &Path, device: &Device) -> Result<HashMap<String, Tensor>> {
    candle::safetensors::load(path, device).with_context(|| format!("cannot read {}", path.display()))
}
