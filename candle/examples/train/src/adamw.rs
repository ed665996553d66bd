//! AdamW (Loshchilov and Hutter, 2019). candle's AdamW does not give its moments away, and a run that resumes
//! needs them.
use crate::parameters::Parameters;
use anyhow::Result;
use candle::Tensor;
use candle::backprop::GradStore;
use std::collections::BTreeMap;

const BETAS: [f64; 2] = [0.9, 0.95];
const EPSILON: f64 = 1e-8;
const DECAY: f64 = 0.01;
/// In the first steps, the learning rate grows linearly.
const WARM_UP: f64 = 10.0;

/// The first and the second moment of each trained parameter, by its name.
#[derive(Default)]
pub struct AdamW {
    /// The moments of the parameters that have had a gradient.
    pub moments: BTreeMap<String, [Tensor; 2]>,
}

impl AdamW {
    /// Changes the trained parameters in a step. Steps count from 0.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &GradStore,
        rate: f64,
        step: usize,
    ) -> Result<()> {
        let count = step as f64 + 1.0;
        let rate = rate * (count / WARM_UP).min(1.0);
        let [first, second] = BETAS.map(|beta| 1.0 - beta.powf(count));
        for (name, var) in &parameters.trained {
            let Some(gradient) = gradients.get(var) else { continue };
            let [m, v] = match self.moments.remove(name) {
                Some(moments) => moments,
                None => [var.zeros_like()?, var.zeros_like()?],
            };
            let m = ((m * BETAS[0])? + (gradient * (1.0 - BETAS[0]))?)?;
            let v = ((v * BETAS[1])? + (gradient.sqr()? * (1.0 - BETAS[1]))?)?;
            let change = ((&m / first)? / ((&v / second)?.sqrt()? + EPSILON)?)?;
            var.set(&((var.as_detached_tensor() * (1.0 - rate * DECAY))? - (change * rate)?)?)?;
            self.moments.insert(name.clone(), [m, v]);
        }
        Ok(())
    }
}
