//! Without the feature `sim`, no simulated card exists.
use ferroflash::Error;
use ferroflash::plan::{AnyPlan, PlanOf, Request};

/// A value that nothing makes.
pub(crate) enum Simulator {}

impl Simulator {
    pub(crate) fn new(profile: &str) -> Result<Self, Error> {
        let reason = "this library was built without the simulator; build it with the feature `sim`";
        Err(Error::unsupported(format_args!("a simulated {profile}"), reason))
    }

    pub(crate) fn plan<R: Request>(&self, _: &R) -> Result<PlanOf<R>, Error> {
        match *self {}
    }

    pub(crate) fn load(&self, _: &AnyPlan) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn launch<R: Request>(&self, _: &PlanOf<R>, _: &R) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn allocate(&self, _: usize) -> Result<u64, Error> {
        match *self {}
    }

    pub(crate) fn free(&self, _: u64) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
        match *self {}
    }
}
