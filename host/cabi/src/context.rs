//! Contexts behind handles.
use crate::args::name;
use crate::call::{Status, call, create, invalid};
use crate::card::Simulator;
use ferroflash::driver::{RawDriver, RawStream};
use ferroflash::plan::{AnyPlan, PlanOf, Request, plan_with};
use ferroflash::tuning::Tuning;
use ferroflash::{Attention, Capabilities, Error};
use std::ffi::{c_char, c_void};

/// `ferroflash_context_t`.
pub struct Context(On);

enum On {
    /// A device, with its loaded kernels.
    Device(Box<Attention<RawDriver>>),
    /// A simulated card.
    Simulator(Box<Simulator>),
    /// The limits of a common card, to plan without a device.
    Profile(&'static Capabilities, Tuning),
}

impl Context {
    /// Validates a request and chooses its kernel.
    pub(crate) fn plan<R: Request>(&self, request: &R) -> Result<PlanOf<R>, Error> {
        match &self.0 {
            On::Device(attention) => attention.plan(request),
            On::Simulator(card) => card.plan(request),
            On::Profile(card, tuning) => plan_with(request, card, tuning),
        }
    }

    /// Loads the kernels of a plan.
    pub(crate) fn load(&self, plan: &AnyPlan) -> Result<(), Error> {
        match &self.0 {
            On::Device(attention) => attention.load(plan),
            On::Simulator(card) => card.load(plan),
            On::Profile(..) => Err(only_plans()),
        }
    }

    /// Enqueues a plan of this context for a request. On a simulated card, the launch has run when this
    /// function returns.
    ///
    /// # Safety
    /// - `stream` is a stream of the CUDA context, or null.
    /// - The memory that the request names is device memory of the CUDA context until the launch has run.
    ///   Until then, other work writes none of the inputs, and does not touch the outputs, except in the
    ///   order of this stream.
    pub(crate) unsafe fn launch<R: Request>(
        &self,
        plan: &PlanOf<R>,
        request: &R,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        match &self.0 {
            // SAFETY: the caller promises valid memory and a valid stream.
            On::Device(attention) => unsafe { attention.launch(plan, request, &RawStream::from_raw(stream)) },
            On::Simulator(card) => card.launch(plan, request),
            On::Profile(..) => Err(only_plans()),
        }
    }

    /// Returns a context on a simulated card.
    pub(crate) fn simulated(card: Simulator) -> Self {
        Context(On::Simulator(Box::new(card)))
    }

    /// Returns the simulated card.
    pub(crate) fn simulator(&self) -> Result<&Simulator, Error> {
        let expected = "it must come from ferroflash_context_create_simulator";
        match &self.0 {
            On::Simulator(card) => Ok(card),
            On::Device(_) => Err(invalid("context", "on a GPU", expected)),
            On::Profile(..) => Err(invalid("context", "of a profile", expected)),
        }
    }
}

fn only_plans() -> Error {
    let expected = "a profile has no GPU and only plans; use ferroflash_context_create";
    invalid("context", "of a profile", expected)
}

/// Creates a context on the current CUDA context. Reads the measurements of `ferroflash sweep` from the file
/// that the environment variable `FERROFLASH_TUNING` names. If the variable is unset, reads the user's
/// default file, if that file exists.
///
/// # Safety
/// `context` may be written. The CUDA context outlives the new context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_create(context: *mut *mut Context) -> Status {
    let made = || {
        // The tuning file is read before the driver is opened, so that an unreadable file is an error on
        // every machine.
        let tuning = Tuning::from_environment()?;
        // SAFETY: the caller promises that the CUDA context outlives the new context.
        let attention = Attention::with_tuning(unsafe { RawDriver::current()? }, tuning);
        Ok(Context(On::Device(Box::new(attention))))
    };
    // SAFETY: the caller promises that `context` may be written.
    unsafe { create("context", context, made) }
}

/// Creates a context that plans for a common card, on a machine without a GPU.
///
/// # Safety
/// `profile` is null or a string. `context` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_create_profile(
    profile: *const c_char,
    context: *mut *mut Context,
) -> Status {
    let made = || {
        // SAFETY: the caller promises a string or null.
        let profile = unsafe { name("profile", profile)? }.unwrap_or("NULL");
        let card = Capabilities::profile(profile).ok_or_else(|| {
            let known: Vec<_> = Capabilities::PROFILES.iter().map(|(name, _)| *name).collect();
            invalid("profile", profile, format_args!("it must be one of {}", known.join(", ")))
        })?;
        Ok(Context(On::Profile(card, Tuning::from_environment()?)))
    };
    // SAFETY: the caller promises that `context` may be written.
    unsafe { create("context", context, made) }
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

/// Drops a handle.
///
/// # Safety
/// The handle is null, or came from [`create`] and is not used again.
pub(crate) unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // A failed destruction is not reported, but no panic may leave the function.
        call(|| {
            // SAFETY: the pointer is not null, and the caller promises that it came from `create`.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
