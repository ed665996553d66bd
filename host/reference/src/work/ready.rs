//! Planned and loaded launches of a problem, to be measured.
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
    /// The owner of the memory that `asked` points to.
    pub(super) device: OnDevice<'a, D>,
    pub(super) _outputs: Outputs<D>,
}

impl<D: Harness> Ready<'_, D> {
    /// Enqueues a launch.
    ///
    /// # Errors
    /// Errors of launching.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: every view is of a buffer of this driver. The buffer has the size of the view and is freed
        // only after a wait. Nothing else writes the inputs or touches the outputs, and one stream orders the
        // launches.
        unsafe { self.asked.launch(self.attention, &self.plan, self.stream()) }
    }

    /// The stream of the launches.
    pub fn stream(&self) -> &D::Stream {
        self.device.stream()
    }

    /// The attention that launches them.
    pub fn attention(&self) -> &Attention<D> {
        self.attention
    }

    /// The kernel that launches run; of two kernels, the first.
    pub fn kernel(&self) -> &'static Contract {
        self.plan.contract()
    }
}

impl<D: Harness> Drop for Ready<'_, D> {
    fn drop(&mut self) {
        // An error here has been reported before.
        let _ = self.device.wait();
    }
}
