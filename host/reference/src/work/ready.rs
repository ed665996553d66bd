//! Launches of a problem without any other work. Measurements time these launches.
use super::OnDevice;
use super::device::Outputs;
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use ferroflash::plan::{AnyPlan, AnyRequest};
use ferroflash::{Attention, Error};

/// A planned problem with loaded kernels. All launches write the same outputs. A launch calls
/// [`Attention::launch`] and nothing else.
pub struct Ready<'a, D: Harness> {
    attention: &'a Attention<D>,
    asked: AnyRequest<'a>,
    plan: AnyPlan,
    /// The owner of the memory that `asked` points to.
    device: OnDevice<'a, D>,
    _outputs: Outputs<D>,
}

impl<'a, D: Harness> OnDevice<'a, D> {
    /// Prepares measured launches: loads the kernels, and allocates outputs that all launches share.
    pub fn ready(self) -> Result<Ready<'a, D>, Error> {
        let outputs = self.outputs()?;
        let (asked, plan) = self.planned(&outputs)?;
        self.attention.load(&plan)?;
        Ok(Ready { attention: self.attention, asked, plan, device: self, _outputs: outputs })
    }
}

impl<D: Harness> Ready<'_, D> {
    /// Enqueues a launch.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: every view is a view of one of this driver's buffers. The buffer has the size of the view
        // and is freed only after a wait. Nothing else writes the inputs or touches the outputs, and one
        // stream orders the launches.
        unsafe { self.attention.launch(&self.plan, &self.asked, self.stream()) }
    }

    /// Returns the stream of the launches.
    pub fn stream(&self) -> &D::Stream {
        self.device.stream()
    }

    /// Returns the [`Attention`] that launches.
    pub fn attention(&self) -> &Attention<D> {
        self.attention
    }

    /// Returns the kernel. If there is a combine kernel, returns the first of the two.
    pub fn kernel(&self) -> &'static Contract {
        self.plan.contract()
    }
}

impl<D: Harness> Drop for Ready<'_, D> {
    fn drop(&mut self) {
        // This function ignores the result, because an earlier call has already reported such an error.
        let _ = self.device.wait();
    }
}
