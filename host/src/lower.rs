//! Lowers a request, a kernel and its schedule to steps of a [`Launch`](crate::launch::Launch). Only this
//! module writes kernel parameters.
mod append;
mod attention;
mod block_mask;
mod divided;
mod fp8;
mod gradient;
mod head_maxima;
mod int8_cache;
mod merge;
mod quantised;
mod rotary;
mod sum;
mod tensors;
mod variant;

pub(crate) use append::append;
pub(crate) use attention::attention;
pub(crate) use divided::divided;
pub(crate) use fp8::cache::fp8_on_cache;
pub(crate) use gradient::{GradientMemory, TableMemory, gradient};
pub(crate) use head_maxima::head_maxima;
pub(crate) use int8_cache::int8_on_cache;
pub(crate) use merge::{Merged, merge, state};
pub(crate) use quantised::{quantise_of, quantised, quantised_bytes};
pub(crate) use sum::sum;
pub(crate) use variant::fits;

use crate::Error;

/// The reason why a kernel cannot be launched for valid tensors.
#[derive(Debug)]
pub enum Refusal {
    /// The kernel does not accept these tensors. A portable kernel may accept them.
    Tensors(&'static str),
    /// No kernel accepts the request.
    Request(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Request(error)
    }
}
