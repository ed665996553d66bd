//! Shapes of backward passes.
use super::count;
use super::forward;
use super::workload::{Workload, fits};
use crate::error::Error;
use reference::BackwardMemory;
use serde::Deserialize;

/// One shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// The forward, which runs once before the measurement.
    backward: forward::Shape,
}

impl Shape {
    /// Returns the workload of the shape.
    pub(super) fn workload(&self) -> Result<Workload, Error> {
        let (problem, forward) = (self.backward.problem()?, self.backward.clone());
        let work = [count::backward_flops(&problem), count::backward_bytes(&problem)];
        fits(work[1])?;
        let label = format!("backward of {}", forward.label(&problem));
        let memory = move || BackwardMemory::to_measure(forward.memory(problem), forward.layout());
        Ok(Workload::new(label, work, false, memory))
    }
}
