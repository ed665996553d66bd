//! Selection of merge kernels.
use super::Choice;
use crate::place::Place;
use crate::{Capabilities, DType, Error};
use spec::MERGES;

const REASON: &str = "the only kernel for these dtypes of states and output";

/// Returns the merge kernel for these dtypes of states and output, and the reason for it.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none, or the device cannot run it.
pub(crate) fn merge([states, output]: [DType; 2], on: &Capabilities) -> Result<Choice<Place>, Error> {
    let kernel = MERGES.iter().find(|kernel| (kernel.states, kernel.output) == (states, output));
    let Some(kernel) = kernel else {
        let feature = format_args!("{} of {} states", output.name(), states.name());
        let reason = "the output must have the states' dtype; for f32 states, f16 and bf16 are permitted too";
        return Err(Error::unsupported(feature, reason));
    };
    on.runs(&kernel.contract)?;
    Ok(Choice::new(Place::of(&kernel.contract), REASON))
}
