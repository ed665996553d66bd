//! Launches of a problem without anything beside them: what is measured.
use super::device::Outputs;
use super::{Asked, OnDevice, Plans};
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use ferroflash::{Attention, Error};

/// A problem whose launches are planned and loaded, and write the same outputs. A launch does what
/// [`Attention::launch`] does, and nothing else.
pub struct Ready<'a, D: Harness> {
    pub(super) attention: &'a Attention<D>,
    pub(super) asked: Asked<'a>,
    pub(super) plan: Plans,
    /// What `asked` points to.
    pub(super) device: OnDevice<'a, D>,
    pub(super) _outputs: Outputs<D>,
}

impl<D: Harness> Ready<'_, D> {
    /// Enqueues a launch.
    ///
    /// # Errors
    /// Those of launching.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: every view is of a buffer of this driver that is as large as the view says and is freed
        // only after a wait; nobody else writes the inputs or touches the outputs, and launches are in the
        // order of one stream.
        unsafe { self.asked.launch(self.attention, &self.plan, self.stream()) }
    }

    /// The stream of the launches.
    pub fn stream(&self) -> &D::Stream {
        self.device.stream()
    }

    /// What launches them.
    pub fn attention(&self) -> &Attention<D> {
        self.attention
    }

    /// The kernel that launches run; the first where there are two.
    pub fn kernel(&self) -> &'static Contract {
        self.plan.contract()
    }
}

impl<D: Harness> Drop for Ready<'_, D> {
    fn drop(&mut self) {
        // What fails here has failed before, too.
        let _ = self.device.wait();
    }
}
