//! Shapes of merges.
use super::fields::{self, sizes};
use super::workload::{Workload, fits};
use crate::error::Error;
use ferroflash::request::LseUnit;
use reference::{Lie, MergeCase, MergeMemory};
use serde::Deserialize;

/// Maximum number of states per shape. Each state is a separate tensor.
const MOST_STATES: usize = 1 << 16;

/// One shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// Tokens of each state.
    merge: usize,
    /// Number of states [default: 2].
    states: Option<usize>,
    heads_q: usize,
    head_dim: usize,
    /// f16 or bf16 [default: f16].
    dtype: Option<String>,
    /// A name for readers of the report.
    #[serde(rename = "name")]
    _name: Option<String>,
}

impl Shape {
    /// Returns the workload of the shape.
    pub(super) fn workload(&self) -> Result<Workload, Error> {
        let Self { merge: tokens, heads_q: heads, head_dim, .. } = *self;
        let states = self.states.unwrap_or(2);
        if states > MOST_STATES {
            return Err(Error::Invalid(format!("states {states}: at most {MOST_STATES} are measured")));
        }
        sizes(&[("merge", tokens), ("states", states), ("heads_q", heads), ("head_dim", head_dim)])?;
        let dtype = fields::dtype(self.dtype.as_deref())?;
        // In each state and in the result, each row has O and an LSE.
        let row = head_dim as f64 * dtype.bytes() as f64 + 4.0;
        let bytes = (states as f64 + 1.0) * tokens as f64 * heads as f64 * row;
        fits(bytes)?;
        let case = MergeCase {
            dtypes: [dtype; 2],
            shape: [1, tokens, heads, head_dim],
            states,
            lie: Lie::Apart,
            units: [LseUnit::Natural; 2],
            sinks: false,
            place_of: None,
            seed: 1,
        };
        let label = format!(
            "{}, merge of {states} states of {tokens} tokens, heads {heads}, head_dim {head_dim}",
            dtype.name()
        );
        Ok(Workload::new(label, [0.0, bytes], true, move || MergeMemory::to_measure(&case)))
    }
}
