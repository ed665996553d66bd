//! The way in: plan and launch on one device.
use crate::maps::Maps;
use crate::plan::{Plan, PlanOf, Request, plan_with, sealed::Subject};
use crate::{Boxes, Capabilities, Driver, Error, Launch, Tuning, image};
use spec::KERNELS;
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

    /// Checks a request and decides how to launch it. Touches no device: the same as
    /// [`plan_with`] with this device's capabilities and measurements.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Unsupported`], naming the value.
    pub fn plan<R: Request>(&self, request: &R) -> Result<PlanOf<R>, Error> {
        plan_with(request, self.capabilities(), &self.tuning)
    }

    /// Loads the plan's kernels now rather than at its first launch, and encodes the maps of its tensors
    /// where kernels want some. Do this before capturing a graph, and to keep compilation out of a first
    /// request.
    ///
    /// # Errors
    /// [`Error::Driver`] with the compiler's log; [`Error::Unsupported`] where this build carries no PTX for
    /// the entry.
    pub fn load<S: Subject>(&self, plan: &Plan<S>) -> Result<(), Error> {
        plan.kernels().try_for_each(|place| self.kernel(place).map(|_| ()))?;
        plan.launch().maps().iter().try_for_each(|map| self.maps.of(&self.driver, map).map(|_| ()))
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
    pub fn loaded_from<S: Subject>(&self, plan: &Plan<S>) -> &'static str {
        image::kind(&self.driver, plan.contract().symbol)
    }

    /// [Binds](Plan::bind) a plan to a request and [enqueues](Attention::enqueue) the launch on the caller's
    /// stream: no allocation, no synchronisation. The tensors may be others than the plan was made with, as
    /// long as it is the same problem; they are then checked again.
    ///
    /// # Errors
    /// Those of [`Plan::bind`] and of [`Attention::enqueue`].
    ///
    /// # Safety
    /// Those of [`Attention::enqueue`].
    pub unsafe fn launch<R: Request + crate::plan::sealed::Request<Subject = S>, S: Subject>(
        &self,
        plan: &Plan<S>,
        request: &R,
        stream: &D::Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promises.
        unsafe { self.enqueue(&plan.bind(request)?, stream) }
    }

    /// Enqueues a launch, a plan that is [bound](Plan::bind) to a request, on the caller's stream: no
    /// allocation, no synchronisation.
    ///
    /// # Errors
    /// Those of [`Attention::load`] at the first launch of a kernel; [`Error::Driver`] where the driver
    /// refuses.
    ///
    /// # Safety
    /// - The plan was made for this device.
    /// - `stream` is a stream of this driver's context, and `self` stays until the launch has run.
    /// - Each buffer that the request names, its scratch memory too, is device memory of this driver's
    ///   context, as large as it says, until the launch has run.
    /// - Until then nothing else writes what the request reads, or touches what it writes, its workspace and
    ///   its counters, but in the order of the same stream.
    pub unsafe fn enqueue(&self, launch: &Launch, stream: &D::Stream) -> Result<(), Error> {
        // All are loaded before one is launched: none may wait for another's compilation.
        launch.kernels().try_for_each(|place| self.kernel(place).map(|_| ()))?;
        let maps = |boxes: &Boxes| self.maps.of(&self.driver, boxes);
        launch.each(maps, |kernel, grid, params| {
            // SAFETY: the bytes are those of the kernel's parameters; the rest is the caller's promise. A
            // second kernel comes after the first in the stream's order; other launches of the caller's use
            // the same workspace in the order of one stream, or not at all.
            unsafe { self.driver.launch(self.kernel(kernel)?, grid, params, stream) }
        })
    }
}
