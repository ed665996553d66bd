//! A request, a kernel and its schedule become a [`Launch`](crate::launch::Launch): the one place where
//! parameters of kernels are written.
mod append;
mod attention;
mod merge;
mod tensors;

pub(crate) use append::append;
pub(crate) use attention::{attention, takes};
pub(crate) use merge::{Merged, merge};

use crate::Error;

/// Why a kernel is not launched for tensors that have been checked.
#[derive(Debug)]
pub enum Refusal {
    /// It does not take these tensors; a kernel that takes any may.
    Tensors(&'static str),
    /// No kernel does.
    Request(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Request(error)
    }
}
