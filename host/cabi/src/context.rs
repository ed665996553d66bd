//! Contexts behind handles.
use crate::call::{Status, call, invalid, store};
use ferroflash::driver::{RawDriver, RawStream};
use ferroflash::plan::Request;
use ferroflash::tuning::Tuning;
use ferroflash::{Attention, Error};
use std::ffi::c_void;

/// `ferroflash_context_t`.
pub struct Context(Attention<RawDriver>);

impl Context {
    /// Returns the object that plans and launches.
    pub(crate) fn attention(&self) -> &Attention<RawDriver> {
        &self.0
    }
}

/// Creates a context on the current CUDA context. Reads the measurements of `ferroflash sweep` from the file
/// that the environment variable `FERROFLASH_TUNING` names. If the variable is unset, reads the user's
/// default file, if that file exists.
///
/// # Safety
/// `context` may be written. The CUDA context outlives the new context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_create(context: *mut *mut Context) -> Status {
    call(|| {
        if context.is_null() {
            return Err(invalid("context", "NULL", "it must not be null"));
        }
        // The tuning file is read before the driver is opened, so that an unreadable file is an error on
        // every machine.
        let tuning = Tuning::from_environment()?;
        // SAFETY: the caller promises that the CUDA context outlives the new context.
        let attention = Attention::with_tuning(unsafe { RawDriver::current()? }, tuning);
        // SAFETY: the caller promises that `context` may be written.
        unsafe { store("context", context, Context(attention)) }
    })
}

/// Destroys a context and unloads its kernels. Does nothing for null.
///
/// # Safety
/// `context` is null, or came from [`ferroflash_context_create`], is destroyed once, and is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_destroy(context: *mut Context) {
    // SAFETY: the caller makes the promises of `destroy`.
    unsafe { destroy(context) };
}

/// Plans and enqueues a request.
///
/// # Safety
/// - `stream` is a stream of the CUDA context, or null.
/// - The memory that the request names is device memory of the CUDA context until the launch has run. Until
///   then, other work writes none of the inputs, and does not touch the outputs, except in the order of this
///   stream.
pub(crate) unsafe fn enqueue<R: Request>(
    context: &Context,
    request: &R,
    stream: *mut c_void,
) -> Result<(), Error> {
    let plan = context.0.plan(request)?;
    // SAFETY: the caller promises valid memory and a valid stream.
    unsafe { context.0.launch(&plan, request, &RawStream::from_raw(stream)) }
}

/// Drops a handle.
///
/// # Safety
/// The handle is null, or came from [`store`] and is not used again.
pub(crate) unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // A failed destruction is not reported, but no panic may leave the function.
        call(|| {
            // SAFETY: the pointer is not null, and the caller promises that it came from `store`.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
