//! The numbers of a model: trained ones, and frozen ones.
use crate::sizes::Sizes;
use crate::text::Dice;
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor, Var};
use std::collections::{BTreeMap, HashMap};

/// The parameters of a model in f32, by the names that checkpoints of Llama have.
pub struct Parameters {
    /// The parameters that training changes.
    pub trained: BTreeMap<String, Var>,
    /// With LoRA, the weights of the base model.
    pub frozen: BTreeMap<String, Tensor>,
    /// The rank of LoRA's matrices; `None` trains all weights.
    pub rank: Option<usize>,
}

/// Returns whether a parameter is one of LoRA's matrices.
fn is_lora(name: &str) -> bool {
    name.contains(".lora_")
}

/// LoRA's alpha: its product has the factor `ALPHA / rank`.
const ALPHA: f64 = 16.0;

impl Parameters {
    /// Draws the parameters of a model. LoRA's products begin at 0.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn random(sizes: &Sizes, rank: Option<usize>, device: &Device) -> Result<Self> {
        let mut dice = Dice::new(1);
        let (mut trained, mut frozen) = (BTreeMap::new(), BTreeMap::new());
        let mut draw = |[rows, columns]: [usize; 2], deviation: f32| {
            // The standard deviation of numbers from -1 to 1 is 1 / sqrt(3).
            let factor = deviation * 3f32.sqrt();
            let numbers: Vec<f32> = (0..rows * columns).map(|_| dice.between_ones() * factor).collect();
            Ok::<_, anyhow::Error>(Tensor::from_vec(numbers, (rows, columns), device)?)
        };
        for (name, shape) in sizes.weights() {
            let tensor = match shape {
                [1, columns] => Tensor::ones(columns, DType::F32, device)?,
                shape => draw(shape, 0.02)?,
            };
            let Some(rank) = rank else {
                trained.insert(name, Var::from_tensor(&tensor)?);
                continue;
            };
            if name.contains("_proj.") {
                let [rows, columns] = shape;
                let a = draw([rank, columns], (columns as f32).powf(-0.5))?;
                trained.insert(format!("{name}.lora_a"), Var::from_tensor(&a)?);
                trained.insert(format!("{name}.lora_b"), Var::zeros((rows, rank), DType::F32, device)?);
            }
            frozen.insert(name, tensor);
        }
        Ok(Parameters { trained, frozen, rank })
    }

    /// Replaces the parameters by those of a checkpoint, whose other tensors are no weights.
    ///
    /// # Errors
    /// Returns an error if the checkpoint is of another model: lacks a weight, or has one more, or one of
    /// another shape. A checkpoint may lack LoRA's matrices.
    pub fn load(&mut self, tensors: &HashMap<String, Tensor>) -> Result<()> {
        let names = || self.trained.keys().chain(self.frozen.keys());
        if let Some(name) = names().find(|name| !tensors.contains_key(*name) && !is_lora(name)) {
            bail!("the checkpoint has no {name}: give the sizes of its model");
        }
        let is_weight = |name: &&String| name.starts_with("model.") || name.starts_with("lm_head.");
        if let Some(name) = tensors.keys().filter(is_weight).find(|name| !names().any(|own| own == *name)) {
            let remedy =
                if is_lora(name) { "give its rank with --lora" } else { "give the sizes of its model" };
            bail!("the checkpoint has {name}, and this model has not: {remedy}");
        }
        for (name, tensor) in tensors {
            let old = self.trained.get(name).map(|var| var.as_tensor().clone());
            let Some(old) = old.or_else(|| self.frozen.get(name).cloned()) else { continue };
            let (there, here) = (tensor.shape(), old.shape());
            ensure!(there == here, "{name} is {there:?} in the checkpoint: the model's sizes say {here:?}");
            let tensor = tensor.to_device(old.device())?.to_dtype(DType::F32)?;
            match self.trained.get(name) {
                Some(var) => var.set(&tensor)?,
                None => drop(self.frozen.insert(name.clone(), tensor)),
            }
        }
        Ok(())
    }

    /// Returns a weight in the dtype of the computation.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn get(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let trained = self.trained.get(name).map(Var::as_tensor);
        let tensor =
            trained.or_else(|| self.frozen.get(name)).with_context(|| format!("no weight {name}"))?;
        Ok(tensor.to_dtype(dtype)?)
    }

    /// Returns the product of rows and a weight, `[out, in]`, and adds LoRA's.
    ///
    /// # Errors
    /// Returns an error if there is no such weight, or the device fails.
    pub fn product(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let times =
            |x: &Tensor, name: &str| Ok::<_, anyhow::Error>(x.matmul(&self.get(name, x.dtype())?.t()?)?);
        let y = times(x, name)?;
        match self.rank {
            Some(rank) if name.contains("_proj.") => {
                let low = times(x, &format!("{name}.lora_a"))?;
                Ok((y + (times(&low, &format!("{name}.lora_b"))? * (ALPHA / rank as f64))?)?)
            }
            _ => Ok(y),
        }
    }
}
