//! Which kernel merges partial results.
use crate::schedule::place;
use crate::{Capabilities, DType, Error};
use spec::MERGES;

const REASON: &str = "the one kernel for states and output of these types";

/// The kernel that makes an output of one type of states of another, by its place in [`spec::KERNELS`], and why
/// it was chosen.
///
/// # Errors
/// [`Error::Unsupported`] where there is none, or the device does not run it.
pub(crate) fn merge([states, output]: [DType; 2], on: &Capabilities) -> Result<(usize, &'static str), Error> {
    let kernel = MERGES.iter().find(|kernel| (kernel.states, kernel.output) == (states, output));
    let Some(kernel) = kernel else {
        let feature = format_args!("{} of {} states", output.name(), states.name());
        let reason = "the output has the states' type, or is f16 or bf16 where they are f32";
        return Err(Error::unsupported(feature, reason));
    };
    on.runs(&kernel.contract)?;
    Ok((place(&kernel.contract), REASON))
}
