//! Plans of decodes behind handles: checked once, launched many times.
use crate::args::read;
use crate::call::{Status, borrow, call, store};
use crate::context::{Context, destroy, info};
use crate::decode::DecodeArgs;
use crate::forward::PlanInfo;
use ferroflash::Plan;
use ferroflash::driver::RawStream;
use std::ffi::{CString, c_void};

/// `ferroflash_decode_plan_t`.
pub struct DecodePlanHandle {
    plan: Plan,
    reason: CString,
}

/// Checks a decode and decides how it is launched.
///
/// # Safety
/// - `context` is null or a live context; `decode` is null or a struct of as many bytes as its size says, and
///   its `config` null or a string.
/// - `plan` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_plan_create(
    context: *const Context,
    decode: *const DecodeArgs,
    plan: *mut *mut DecodePlanHandle,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(decode)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        let made = context.attention().plan(&unsafe { args.decode()? })?;
        let reason = CString::new(made.reason()).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { store("plan", plan, DecodePlanHandle { plan: made, reason }) }
    })
}

/// Frees a plan. Null is nothing to destroy.
///
/// # Safety
/// `plan` is null, or came from [`ferroflash_decode_plan_create`], is destroyed once, and is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_plan_destroy(plan: *mut DecodePlanHandle) {
    // SAFETY: the caller's promise.
    unsafe { destroy(plan) };
}

/// Describes a plan: the kernel that computes attention.
///
/// # Safety
/// - `plan` is null or a live plan.
/// - `about` is null or a struct of as many bytes as its size says, which may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_plan_describe(
    plan: *const DecodePlanHandle,
    about: *mut PlanInfo,
) -> Status {
    call(|| {
        // SAFETY: the caller's promise.
        let DecodePlanHandle { plan, reason } = unsafe { borrow("plan", plan)? };
        // SAFETY: the caller's promise.
        unsafe { info(about, plan, reason) }
    })
}

/// Loads the plan's kernels.
///
/// # Safety
/// `context` and `plan` are null or live, and belong together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_load(
    context: *const Context,
    plan: *const DecodePlanHandle,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, plan) = unsafe { (borrow("context", context)?, borrow("plan", plan)?) };
        context.attention().load(&plan.plan)
    })
}

/// Enqueues a planned decode.
///
/// # Safety
/// - Those of [`crate::ferroflash_decode`], and `plan` is null or a live plan of this context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_decode_launch(
    context: *const Context,
    plan: *const DecodePlanHandle,
    decode: *const DecodeArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, plan, args) =
            unsafe { (borrow("context", context)?, borrow("plan", plan)?, read(decode)?) };
        // SAFETY: the caller's promises; the name is used in this call alone.
        unsafe { context.attention().launch(&plan.plan, &args.decode()?, &RawStream::from_raw(stream)) }
    })
}
