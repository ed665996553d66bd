//! Attention problems in device memory.
use super::{Memory, Outcome};
use crate::device_lengths::DeviceLengths;
use crate::work::{Input, OnDevice};
use ferroflash::driver::Harness;
use ferroflash::plan::AnyPlan;
use ferroflash::{Attention, Error};
use std::time::Duration;

/// A problem whose inputs are in device memory. Methods return the errors of [`OnDevice`].
pub struct Loaded<'a, D: Harness> {
    device: OnDevice<'a, D>,
    memory: &'a Memory,
    wants_lse: bool,
}

impl<'a, D: Harness> Loaded<'a, D> {
    /// Copies the inputs of `memory` to the device. `config` names the entry to run; without it, the planner
    /// chooses.
    pub fn new(
        attention: &'a Attention<D>,
        memory: &'a Memory,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        Ok(Loaded { device: OnDevice::new(attention, memory, config)?, memory, wants_lse: true })
    }

    /// Makes launches without LSE.
    pub fn without_lse(self) -> Self {
        Loaded { device: self.device.without_lse(), wants_lse: false, ..self }
    }

    /// Replaces `cu_seqlens_q` of a cache's varlen batch in device memory. The tensors stay.
    pub fn start(&mut self, cu_seqlens_q: &[i32]) -> Result<(), Error> {
        self.device.change([Input::new("cu_seqlens_q", bytes!(cu_seqlens_q))])
    }

    /// Launches `plan`, or a new plan if `plan` is `None`, on sequences of a cache with these lengths.
    pub fn launch(&mut self, plan: Option<&AnyPlan>, lengths: &[i32]) -> Result<(AnyPlan, Outcome), Error> {
        if let Some(case) = self.memory.cache.as_ref().map(|cache| &cache.case) {
            let rest = case.shared.as_ref().map(|_| Input::new("rest_lengths", bytes!(case.rest(lengths))));
            let lengths = [Input::new("lengths", bytes!(lengths))];
            self.device.change(lengths.into_iter().chain(rest))?;
        }
        self.device.use_plan(plan.copied());
        let outcome = self.run()?;
        let plan = self.device.plan().ok_or_else(|| Error::invalid("plan", "none", "a launch has one"))?;
        Ok((plan, outcome))
    }

    /// Launches once and returns the outputs.
    pub fn run(&self) -> Result<Outcome, Error> {
        Ok(self.outcome(&self.device.run()?))
    }

    /// Like [`Loaded::run`], but also returns two durations: the time to load the kernel on the host, and the
    /// time of the launch on the device.
    pub fn run_timed(&self) -> Result<(Outcome, [Duration; 2]), Error> {
        let (written, took) = self.device.run_timed()?;
        Ok((self.outcome(&written), took))
    }

    fn outcome(&self, written: &crate::work::Written) -> Outcome {
        Outcome::new(self.memory, written, self.memory.rows_written(DeviceLengths::Filled), self.wants_lse)
    }

    /// Returns the device time of `launches` consecutive launches of `config`. The launches share their
    /// outputs. The kernel is loaded before the first of these launches.
    pub fn time(&mut self, config: &'a str, launches: usize) -> Result<Duration, Error> {
        self.device.configure(Some(config))?;
        self.device.time(&self.device.outputs()?, launches)
    }
}
