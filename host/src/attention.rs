//! The way in: plan and launch on one device.
use crate::prepared::bytes_of;
use crate::split::Split;
use crate::{Capabilities, Driver, Error, Forward, LaunchContract, Plan, Tuning, image, plan_with, workspace_bytes};
use spec::{COMBINES, ENTRIES};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Attention on one device. Kernels load when they are first launched, one module an entry, and stay loaded. Share it between threads.
pub struct Attention<D: Driver> {
    driver: D,
    /// Those of [`ENTRIES`], then those of [`COMBINES`].
    kernels: [OnceLock<D::Kernel>; ENTRIES.len() + COMBINES.len()],
    loading: Mutex<()>,
    tuning: Tuning,
}

impl<D: Driver> Attention<D> {
    /// Attention by way of `driver`. Loads no module.
    pub fn new(driver: D) -> Self {
        Self::with_tuning(driver, Tuning::new())
    }

    /// The same with what was measured, which comes before the planner's own table.
    pub fn with_tuning(driver: D, tuning: Tuning) -> Self {
        Attention { driver, kernels: [const { OnceLock::new() }; _], loading: Mutex::new(()), tuning }
    }

    /// The driver.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// The device's limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.driver.capabilities()
    }

    /// Checks `forward` and decides how to launch it. Touches no device: the same as [`plan_with`] with this device's capabilities.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Unsupported`], naming the value.
    pub fn plan(&self, forward: &Forward<'_>) -> Result<Plan, Error> {
        plan_with(forward, self.capabilities(), &self.tuning)
    }

    /// Bytes of [`Forward::workspace`] with which `forward` runs fastest: [`workspace_bytes`] with this device's capabilities.
    ///
    /// # Errors
    /// Those of [`Attention::plan`].
    pub fn workspace_bytes(&self, forward: &Forward<'_>) -> Result<u64, Error> {
        workspace_bytes(forward, self.capabilities(), &self.tuning)
    }

    /// Loads the plan's kernels now rather than at its first launch. Do this before capturing a graph, and to keep compilation out of a
    /// first request.
    ///
    /// # Errors
    /// [`Error::Driver`] with the compiler's log; [`Error::Unsupported`] where this build carries no PTX for the entry.
    pub fn load(&self, plan: &Plan) -> Result<(), Error> {
        self.kernel(plan.index, LaunchContract::from(plan.entry))?;
        plan.split.map_or(Ok(()), |split| self.combine(&split).map(|_| ()))
    }

    /// The kernel that merges.
    fn combine(&self, split: &Split) -> Result<&D::Kernel, Error> {
        self.kernel(ENTRIES.len() + split.index, LaunchContract::from(&split.combine.kernel))
    }

    fn kernel(&self, index: usize, contract: LaunchContract<'_>) -> Result<&D::Kernel, Error> {
        let slot = &self.kernels[index];
        if let Some(kernel) = slot.get() {
            return Ok(kernel);
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.get().is_none() {
            // Only this function sets it, under the lock.
            let _ = slot.set(image::load(&self.driver, contract)?);
        }
        slot.get().ok_or_else(|| Error::unsupported(contract.symbol, "it did not load"))
    }

    /// Loads `ptx` for the kernel `symbol` instead of this build's: one that somebody works on, or with a planted bug.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there is no such kernel or it is loaded already; [`Error::Driver`] with the compiler's log.
    pub fn load_from(&self, symbol: &str, ptx: &str) -> Result<(), Error> {
        let invalid = |expected: &str| Error::invalid("kernel", symbol, expected);
        let mut kernels = spec::kernels().zip(&self.kernels);
        let found = kernels.find(|(kernel, _)| kernel.symbol == symbol);
        let (kernel, slot) = found.ok_or_else(|| invalid("it must be one of the table"))?;
        let kernel = self.driver.load(ptx, LaunchContract::from(&kernel))?;
        slot.set(kernel).map_err(|_| invalid("it is loaded already; do this first"))
    }

    /// What [`Attention::load`] loads the plan's kernel from: `cubin` or `PTX`.
    #[cfg(feature = "cli")]
    pub(crate) fn loaded_from(&self, plan: &Plan) -> &'static str {
        image::kind(&self.driver, plan.entry.symbol)
    }

    /// Enqueues `forward` on the caller's stream: no allocation, no synchronisation. The tensors may be others than the plan was made
    /// with, as long as it is the same problem; they are then checked again.
    ///
    /// # Errors
    /// [`Error::Invalid`] where `forward` is not the plan's problem; those of [`Attention::load`] at the first launch of an entry;
    /// [`Error::Driver`] where the driver refuses.
    ///
    /// # Safety
    /// - Each tensor's buffer, and the workspace, is device memory of this driver's context, as large as it says, until the launch has run.
    /// - Until then nothing else writes `q`, `k` and `v`, or touches `o`, `lse` and the workspace, but in the order of the same
    ///   stream.
    pub unsafe fn launch(&self, plan: &Plan, forward: &Forward<'_>, stream: &D::Stream) -> Result<(), Error> {
        let params = plan.params(forward)?;
        let kernel = self.kernel(plan.index, LaunchContract::from(plan.entry))?;
        let Some(split) = &plan.split else {
            // SAFETY: the bytes are those of the entry's parameters; the rest is the caller's promise.
            return unsafe { self.driver.launch(kernel, plan.grid, bytes_of(&params), stream) };
        };
        let combine = self.combine(split)?;
        let (params, merge) = split.params(&params, forward.workspace.map_or(0, |workspace| workspace.address));
        // SAFETY: as above, for both; the second comes after the first in the stream's order. Other launches of the caller's use the same
        // workspace in the order of one stream, or not at all.
        unsafe {
            self.driver.launch(kernel, plan.grid, bytes_of(&params), stream)?;
            self.driver.launch(combine, split.combine.grid(&merge), bytes_of(&merge), stream)
        }
    }
}
