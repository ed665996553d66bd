//! Planning and launching on one device.
use crate::maps::Maps;
use crate::place::Place;
use crate::plan::{Plan, PlanOf, Request, plan_with, sealed::Subject};
use crate::variant::Compiled;
use crate::{Capabilities, Contract, Driver, Error, Launch, MapDescription, Tuning, image};
use spec::KERNELS;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Attention on one device. Each kernel loads at its first launch, as one module, and stays loaded. Threads
/// can share it.
pub struct Attention<D: Driver> {
    driver: D,
    /// The loaded kernels of the table, in the order of [`KERNELS`].
    kernels: Box<[OnceLock<D::Kernel>]>,
    /// The first node of a list: loaded kernels of variants.
    variants: OnceLock<Box<Loaded<D>>>,
    loading: Mutex<()>,
    maps: Maps,
    tuning: Tuning,
}

/// A node of a list: a loaded kernel of a variant. `next` is the kernel that was loaded after this kernel. No
/// node moves, so a launch can use a kernel without a lock while another thread adds a kernel.
struct Loaded<D: Driver> {
    of: &'static Compiled,
    kernel: D::Kernel,
    next: OnceLock<Box<Loaded<D>>>,
}

impl<D: Driver> std::fmt::Debug for Attention<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let loaded = spec::kernels().zip(&self.kernels[..]).filter(|(_, slot)| slot.get().is_some());
        let loaded: Vec<_> = loaded.map(|(kernel, _)| kernel.symbol).collect();
        let mut text = f.debug_struct("Attention");
        text.field("device", &self.capabilities().name).field("loaded", &loaded);
        text.field("tuning", &self.tuning).finish_non_exhaustive()
    }
}

impl<D: Driver> Attention<D> {
    /// Creates an engine on `driver`. The engine loads no kernel yet.
    pub fn new(driver: D) -> Self {
        Self::with_tuning(driver, Tuning::new())
    }

    /// Creates an engine with measured choices, which override the selection table.
    pub fn with_tuning(driver: D, tuning: Tuning) -> Self {
        let kernels = KERNELS.iter().map(|_| OnceLock::new()).collect();
        let loading = Mutex::new(());
        let variants = OnceLock::new();
        Attention { driver, kernels, variants, loading, maps: Maps::default(), tuning }
    }

    /// Returns the driver.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns the device's limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.driver.capabilities()
    }

    /// Validates a request and plans its launch. Planning touches no device: this method calls [`plan_with`]
    /// with the device's capabilities and measurements.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] or [`Error::Unsupported`], naming the value.
    pub fn plan<R: Request>(&self, request: &R) -> Result<PlanOf<R>, Error> {
        plan_with(request, self.capabilities(), &self.tuning)
    }

    /// Loads the plan's kernels now instead of at the first launch, and encodes the tensor maps of the plan's
    /// tensors. Call this method before you capture a graph. Call it also if the first request must not wait
    /// for a compilation.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] with the compiler's log, or [`Error::Unsupported`] if this build carries no
    /// PTX for the entry.
    pub fn load<S: Subject>(&self, plan: &Plan<S>) -> Result<(), Error> {
        plan.places().try_for_each(|place| self.kernel(place).map(|_| ()))?;
        plan.launch().maps().try_for_each(|map| self.maps.of(&self.driver, map).map(|_| ()))
    }

    /// Returns the kernel at a place. Loads the kernel first if necessary.
    fn kernel(&self, place: Place) -> Result<&D::Kernel, Error> {
        let index = match place {
            Place::Table(index) => usize::from(index),
            Place::Variant(of) => return self.of_variant(of),
        };
        let (slot, contract) = (&self.kernels[index], &KERNELS[index]);
        if let Some(kernel) = slot.get() {
            return Ok(kernel);
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.get().is_none() {
            // `set` cannot fail: only this function sets the cell, and this thread holds the lock.
            let _ = slot.set(image::load(&self.driver, contract)?);
        }
        slot.get().ok_or_else(|| Error::unsupported(contract.symbol, "it did not load"))
    }

    /// Returns a variant's kernel. Loads the kernel first if necessary.
    fn of_variant(&self, of: &'static Compiled) -> Result<&D::Kernel, Error> {
        let mut slot = &self.variants;
        let mut held = None;
        loop {
            match slot.get() {
                Some(loaded) if loaded.of == of => return Ok(&loaded.kernel),
                Some(loaded) => slot = &loaded.next,
                // Another thread may have filled the cell before this thread got the lock.
                None if held.is_none() => {
                    held = Some(self.loading.lock().unwrap_or_else(PoisonError::into_inner));
                }
                None => {
                    let (kernel, next) = (image::load_variant(&self.driver, of)?, OnceLock::new());
                    // `set` cannot fail: only this function sets the cell, and this thread holds the lock.
                    let _ = slot.set(Box::new(Loaded { of, kernel, next }));
                }
            }
        }
    }

    /// Loads `ptx` for the kernel `symbol` instead of the embedded module, for example a kernel under
    /// development or one with a planted bug.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there is no such kernel or it is already loaded, or [`Error::Driver`]
    /// with the compiler's log.
    ///
    /// # Safety
    /// - The entry in `ptx` takes the parameters of the kernel `symbol`, and accesses only memory that the
    ///   embedded kernel would access. Every launch relies on this promise. (The simulator checks each
    ///   access.)
    #[cfg(feature = "testing")]
    pub unsafe fn load_from(&self, symbol: &str, ptx: &str) -> Result<(), Error> {
        let invalid = |expected: &str| Error::invalid("kernel", symbol, expected);
        let found = KERNELS.iter().zip(&self.kernels).find(|(kernel, _)| kernel.symbol == symbol);
        let (kernel, slot) = found.ok_or_else(|| invalid("it must be a symbol of the table"))?;
        let kernel = self.driver.load(ptx, kernel)?;
        slot.set(kernel)
            .map_err(|_| invalid("it is loaded already; call this function before the first launch"))
    }

    /// Returns the form from which [`Attention::load`] loads the plan's kernel: `cubin` or `PTX`.
    pub fn loaded_from<S: Subject>(&self, plan: &Plan<S>) -> &'static str {
        image::kind(&self.driver, plan.launch().place())
    }

    /// [`Attention::loaded_from`] for a kernel of the table.
    pub fn form(&self, contract: &Contract) -> &'static str {
        image::kind(&self.driver, Place::of(contract))
    }

    /// [Binds](Plan::bind) a plan to a request and [enqueues](Attention::enqueue) the launch on the caller's
    /// stream. This method allocates nothing, and does not synchronise. The request must have the plan's
    /// problem, and may have other tensors; `launch` validates other tensors again.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind`] and of [`Attention::enqueue`].
    ///
    /// # Safety
    /// The requirements of [`Attention::enqueue`].
    pub unsafe fn launch<R: Request + crate::plan::sealed::Request<Subject = S>, S: Subject>(
        &self,
        plan: &Plan<S>,
        request: &R,
        stream: &D::Stream,
    ) -> Result<(), Error> {
        let mut others = None;
        let launch = plan.bound(request, &mut others)?;
        // SAFETY: the caller makes the promises of `enqueue`.
        unsafe { self.enqueue(launch, stream) }
    }

    /// Enqueues a launch (a plan that is [bound](Plan::bind) to a request) on the caller's stream. Does not
    /// allocate or synchronise.
    ///
    /// # Errors
    /// Returns the errors of [`Attention::load`] at a kernel's first launch, or [`Error::Driver`] if the
    /// driver fails.
    ///
    /// # Safety
    /// - The plan was made for this device.
    /// - `stream` belongs to this driver's context, and `self` lives until the launch has run.
    /// - Each buffer of the request, including its scratch memory, is device memory of this driver's context,
    ///   has the stated size, and lives until the launch has run.
    /// - If the request has a [variant](mod@crate::variant), the conditions for buffers also hold for the
    ///   memory that the variant's parameters name, and the PTX of the variant's kernels was compiled from
    ///   their types.
    /// - Until the launch has run, other work writes none of the request's inputs, and does not touch its
    ///   outputs, workspace and counters, except in the order of this stream.
    pub unsafe fn enqueue(&self, launch: &Launch, stream: &D::Stream) -> Result<(), Error> {
        // Loads all kernels before the first launch, so that no launched kernel waits for a compilation.
        launch.places().try_for_each(|place| self.kernel(place).map(|_| ()))?;
        let maps = |boxes: &MapDescription| self.maps.of(&self.driver, boxes);
        launch.each(maps, |kernel, grid, params| {
            // SAFETY: the bytes are the kernel's parameters; the caller promises the rest. A second kernel
            // follows the first in the stream's order, or waits by itself: before its wait, it only reads
            // lengths, which are inputs. By the caller's promise, other launches use the workspace only in
            // the order of this stream.
            unsafe { self.driver.launch(self.kernel(kernel)?, grid, params, stream) }
        })
    }
}
