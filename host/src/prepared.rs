//! A kernel that the caller picks by type.
use crate::{Driver, Error, image};
use spec::Entry;
use std::marker::PhantomData;

/// The loaded kernel of configuration `K`. [`Prepared::new`] has checked the device's limits and has opted in
/// to the shared memory. The type gives grid, block and shared memory. This API does not plan or validate;
/// [`crate::Attention`] does.
pub struct Prepared<K: Entry, D: Driver> {
    kernel: D::Kernel,
    entry: PhantomData<K>,
}

impl<K: Entry, D: Driver> std::fmt::Debug for Prepared<K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prepared").field(&K::CONTRACT.symbol).finish()
    }
}

impl<K: Entry, D: Driver> Prepared<K, D> {
    /// Loads the kernel.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] with the compiler's log, or with the device limit that the kernel exceeds,
    /// or [`Error::Unsupported`] if this build carries no PTX for the kernel.
    pub fn new(driver: &D) -> Result<Self, Error> {
        Ok(Prepared { kernel: image::load(driver, &K::CONTRACT)?, entry: PhantomData })
    }

    /// Enqueues the kernel on `stream`.
    ///
    /// # Errors
    /// Returns [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - `K::Params` is plain data without padding, and `params` has values that the documentation of
    ///   `K::Params` permits.
    /// - The memory that `params` points to is device memory of `driver`'s context and lives until the launch
    ///   has run. Until then, other work writes none of the kernel's inputs and does not touch its outputs,
    ///   except in the order of this stream.
    /// - If the kernel is dependent ([`spec::Contract::is_dependent`]), the launch before it in the stream
    ///   writes only memory that the kernel reads behind its wait.
    /// - This kernel was loaded with `driver`, `stream` belongs to its context, and `self` lives until the
    ///   launch has run.
    pub unsafe fn launch(&self, driver: &D, params: &K::Params, stream: &D::Stream) -> Result<(), Error> {
        // SAFETY: the type determines the kernel's parameters; the caller promises the rest.
        unsafe { driver.launch(&self.kernel, K::grid(params), bytes_of(params), stream) }
    }
}

/// Returns the bytes of a kernel's parameters.
///
/// # Safety
/// `P` has no padding.
pub(crate) unsafe fn bytes_of<P: Copy>(params: &P) -> &[u8] {
    // SAFETY: the bytes are readable while the value lives; the caller promises that all of them are
    // initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast(), size_of::<P>()) }
}
