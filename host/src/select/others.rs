//! Selection of append kernels, of merge kernels and of kernels of sums.
use super::Choice;
use crate::place::Place;
use crate::request::Append;
use crate::{Capabilities, DType, Error};
use spec::{APPENDS, AppendInfo, MERGES, SUM_HEADS, Target};

const MERGE: &str = "the only kernel for these dtypes of states and output";

/// Returns the first append kernel for these dtypes that the device can run, and the reason for it.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none.
pub(crate) fn append(append: &Append, on: &Capabilities) -> Result<Choice<Place>, Error> {
    let types = [append.k.dtype, append.pages.keys.dtype];
    let rounds = (types[0] != types[1]).then_some(types);
    let rotates = append.rotary.map(|_| types[0]);
    let fits = |kernel: &&AppendInfo| kernel.rounds == rounds && kernel.rotates == rotates;
    let running = APPENDS.iter().filter(fits).map(|kernel| on.runs(&kernel.contract).map(|()| kernel));
    let [tokens, cache] = types.map(|dtype| dtype.name());
    let nothing = || Error::unsupported(format_args!("{tokens} tokens and an {cache} cache"), "no kernel");
    let kernel = running.reduce(Result::or).unwrap_or_else(|| Err(nothing()))?;
    let reason = match (rounds, kernel.contract.target) {
        (None, _) if rotates.is_some() => {
            "tokens have the KV cache's dtype: the kernel rotates and rounds once"
        }
        (None, _) => "tokens have the KV cache's dtype: the kernel copies bytes",
        (Some([_, DType::Int8]), _) => "the kernel rounds each row to int8: a warp finds the row's scale",
        (Some([_, DType::E4m3Scaled]), _) => {
            "the kernel rounds blocks of 128 columns to e4m3: eight lanes find a block's scale"
        }
        (Some(_), Target::From(80)) => "the kernel rounds to e4m3 by integer arithmetic",
        (Some(_), _) => "the kernel rounds to e4m3 with an instruction of this device",
    };
    Ok(Choice::new(Place::of(&kernel.contract), reason))
}

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
    Ok(Choice::new(Place::of(&kernel.contract), MERGE))
}

/// Returns the kernel of sums of this dtype, and the reason for it.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none, or the device cannot run it.
pub(crate) fn sum(dtype: DType, on: &Capabilities) -> Result<Choice<Place>, Error> {
    let Some(kernel) = SUM_HEADS.iter().find(|kernel| kernel.dtype == dtype) else {
        let reason = "builds with the feature `training` add tensors of f16 and of bf16";
        return Err(Error::unsupported(format_args!("a sum of {}", dtype.name()), reason));
    };
    on.runs(&kernel.contract)?;
    Ok(Choice::new(Place::of(&kernel.contract), "the only kernel of sums of this dtype"))
}
