//! The way in: plan and launch on one device.
use crate::families::Kernels;
use crate::maps::Maps;
use crate::{Boxes, Capabilities, Driver, Error, Plan, Planned, Request, Tuning, image};
use spec::{KERNELS, TensorMap};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Attention on one device. Kernels load when they are first launched, one module an entry, and stay loaded.
/// Share it between threads.
pub struct Attention<D: Driver> {
    driver: D,
    /// Those of [`KERNELS`].
    kernels: [OnceLock<D::Kernel>; KERNELS.len()],
    loading: Mutex<()>,
    maps: Maps,
    tuning: Tuning,
}

impl<D: Driver> std::fmt::Debug for Attention<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let loaded = spec::kernels().zip(&self.kernels).filter(|(_, slot)| slot.get().is_some());
        let loaded: Vec<_> = loaded.map(|(kernel, _)| kernel.symbol).collect();
        let mut text = f.debug_struct("Attention");
        text.field("device", &self.capabilities().name).field("loaded", &loaded);
        text.field("tuning", &self.tuning).finish_non_exhaustive()
    }
}

impl<D: Driver> Attention<D> {
    /// Attention by way of `driver`. Loads no module.
    pub fn new(driver: D) -> Self {
        Self::with_tuning(driver, Tuning::new())
    }

    /// The same with what was measured, which comes before the planner's own table.
    pub fn with_tuning(driver: D, tuning: Tuning) -> Self {
        let (kernels, loading) = ([const { OnceLock::new() }; _], Mutex::new(()));
        Attention { driver, kernels, loading, maps: Maps::default(), tuning }
    }

    /// The driver.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// The device's limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.driver.capabilities()
    }

    /// Checks a request and decides how to launch it. Touches no device: the same as [`crate::plan_with`], or
    /// the request's own plan function, with this device's capabilities.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Unsupported`], naming the value.
    pub fn plan<R: Request>(&self, request: &R) -> Result<R::Plan, Error> {
        self.plan_with(request, 0)
    }

    /// The same for launches that are offered `workspace` bytes. With `u64::MAX` the plan is the one that
    /// runs fastest; launches name the memory of its `workspace_bytes` as the request's workspace.
    ///
    /// # Errors
    /// Those of [`Attention::plan`].
    pub fn plan_with<R: Request>(&self, request: &R, workspace: u64) -> Result<R::Plan, Error> {
        request.plan(self.capabilities(), &self.tuning, workspace)
    }

    /// Loads the plan's kernels now rather than at its first launch, and encodes the maps of its tensors
    /// where kernels want some. Do this before capturing a graph, and to keep compilation out of a first
    /// request.
    ///
    /// # Errors
    /// [`Error::Driver`] with the compiler's log; [`Error::Unsupported`] where this build carries no PTX for
    /// the entry.
    pub fn load(&self, plan: &impl Planned) -> Result<(), Error> {
        let maps = |boxes: &Boxes| self.maps.of(&self.driver, boxes);
        plan.launches().each(maps, |kernel, _, _| self.kernel(kernel).map(|_| ()))?;
        plan.launches().other().map_or(Ok(()), |kernel| self.kernel(kernel).map(|_| ()))
    }

    /// Loads what will be launched.
    fn load_all(&self, launches: &impl Kernels) -> Result<(), Error> {
        launches.each(|_| Ok(TensorMap::EMPTY), |kernel, _, _| self.kernel(kernel).map(|_| ()))
    }

    /// The kernel at a place in [`KERNELS`], loaded.
    fn kernel(&self, place: usize) -> Result<&D::Kernel, Error> {
        let (slot, contract) = (&self.kernels[place], &KERNELS[place]);
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

    /// Loads `ptx` for the kernel `symbol` instead of this build's: one that somebody works on, or with a
    /// planted bug.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there is no such kernel or it is loaded already; [`Error::Driver`] with the
    /// compiler's log.
    ///
    /// # Safety
    /// - The entry in `ptx` takes the parameters of the kernel `symbol`, and reads and writes no more than
    ///   that does: every launch relies on it. (The simulator checks each access.)
    pub unsafe fn load_from(&self, symbol: &str, ptx: &str) -> Result<(), Error> {
        let invalid = |expected: &str| Error::invalid("kernel", symbol, expected);
        let found = KERNELS.iter().zip(&self.kernels).find(|(kernel, _)| kernel.symbol == symbol);
        let (kernel, slot) = found.ok_or_else(|| invalid("it must be one of the table"))?;
        let kernel = self.driver.load(ptx, kernel)?;
        slot.set(kernel).map_err(|_| invalid("it is loaded already; do this first"))
    }

    /// What [`Attention::load`] loads the plan's kernel from: `cubin` or `PTX`.
    pub fn loaded_from(&self, plan: &Plan) -> &'static str {
        image::kind(&self.driver, plan.contract().symbol)
    }

    /// Enqueues a request on the caller's stream: no allocation, no synchronisation. The tensors may be
    /// others than the plan was made with, as long as it is the same problem; they are then checked
    /// again.
    ///
    /// # Errors
    /// [`Error::Invalid`] where `request` is not the plan's problem; those of [`Attention::load`] at the
    /// first launch of an entry; [`Error::Driver`] where the driver refuses.
    ///
    /// # Safety
    /// - `stream` is a stream of this driver's context, and `self` stays until the launch has run.
    /// - Each buffer that the request names, its workspace and counters too, is device memory of this
    ///   driver's context, as large as it says, until the launch has run.
    /// - Until then nothing else writes what the request reads, or touches what it writes, its workspace and
    ///   its counters, but in the order of the same stream.
    pub unsafe fn launch<R: Request>(
        &self,
        plan: &R::Plan,
        request: &R,
        stream: &D::Stream,
    ) -> Result<(), Error> {
        let launches = request.bind(plan)?;
        self.load_all(&launches)?;
        let maps = |boxes: &Boxes| self.maps.of(&self.driver, boxes);
        launches.each(maps, |kernel, grid, params| {
            // SAFETY: the bytes are those of the kernel's parameters; the rest is the caller's promise. A
            // second kernel comes after the first in the stream's order; other launches of the caller's use
            // the same workspace in the order of one stream, or not at all.
            unsafe { self.driver.launch(self.kernel(kernel)?, grid, params, stream) }
        })
    }
}
