//! What can be planned and launched, and what all plans have in common.
use crate::families::Kernels;
use crate::{Capabilities, Error, Tuning};

/// A description of work that [`crate::Attention`] plans and launches.
pub trait Request: sealed::Request<<Self as Request>::Plan> {
    /// What planning makes of it.
    type Plan: Planned;
}

/// A plan of a [`Request`].
pub trait Planned: sealed::Planned {}
impl<P: sealed::Planned> Planned for P {}

/// What this crate alone may do with requests and plans.
pub(crate) mod sealed {
    use super::*;

    pub trait Request<P> {
        /// Checks the request and decides how it is launched on a device with these capabilities, for
        /// launches that are offered so many bytes of workspace beside the request's own.
        fn plan(&self, on: &Capabilities, tuning: &Tuning, workspace: u64) -> Result<P, Error>;

        /// The launches of `plan` for this request: the one that it was made for, or the same with other
        /// tensors.
        fn bind(&self, plan: &P) -> Result<impl Kernels, Error>;
    }

    pub trait Planned {
        /// What was planned.
        fn launches(&self) -> &impl Kernels;
    }
}
