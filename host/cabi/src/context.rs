//! Contexts, plans and launches behind handles.
use crate::args::read;
use crate::call::{Status, borrow, call, invalid, store};
use crate::entries::entry_name;
use crate::forward::{ForwardArgs, PlanInfo};
use ferroflash::driver::{RawDriver, RawStream};
use ferroflash::plan::{Request, ScratchBytes};
use ferroflash::request::Scratch;
use ferroflash::tuning::Tuning;
use ferroflash::{Attention, Error, Plan};
use std::ffi::{CStr, CString, c_void};

/// `ferroflash_context_t`.
pub struct Context(Attention<RawDriver>);

impl Context {
    /// What plans and launches.
    pub(crate) fn attention(&self) -> &Attention<RawDriver> {
        &self.0
    }
}

/// `ferroflash_plan_t`.
pub struct PlanHandle {
    plan: Plan,
    reason: CString,
}

/// Adopts the current CUDA context, and what `ferroflash sweep` measured: the file that `FERROFLASH_TUNING`
/// names, else the user's own where there is one.
///
/// # Safety
/// `context` may be written. The CUDA context outlives the new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_create(context: *mut *mut Context) -> Status {
    call(|| {
        if context.is_null() {
            return Err(invalid("context", "NULL", "it must not be null"));
        }
        // First, so that a file that cannot be read is an error whatever the device is.
        let tuning = Tuning::from_environment()?;
        // SAFETY: the caller's promise.
        let attention = Attention::with_tuning(unsafe { RawDriver::current()? }, tuning);
        // SAFETY: the caller's promise.
        unsafe { store("context", context, Context(attention)) }
    })
}

/// Unloads its kernels. Null is nothing to destroy.
///
/// # Safety
/// `context` is null, or came from [`ferroflash_context_create`], is destroyed once, and is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_destroy(context: *mut Context) {
    // SAFETY: the caller's promise.
    unsafe { destroy(context) };
}

/// Checks a forward and decides how it is launched.
///
/// # Safety
/// - `context` is null or a live context.
/// - `forward` is null or a struct of as many bytes as its size says; its `config` is null or a string.
/// - `plan` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_plan_create(
    context: *const Context,
    forward: *const ForwardArgs,
    plan: *mut *mut PlanHandle,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(forward)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        let made = context.0.plan(&unsafe { args.forward()? })?;
        let reason = CString::new(made.reason()).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { store("plan", plan, PlanHandle { plan: made, reason }) }
    })
}

/// Frees a plan. Null is nothing to destroy.
///
/// # Safety
/// `plan` is null, or came from [`ferroflash_plan_create`], is destroyed once, and is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_plan_destroy(plan: *mut PlanHandle) {
    // SAFETY: the caller's promise.
    unsafe { destroy(plan) };
}

/// Describes a plan.
///
/// # Safety
/// - `plan` is null or a live plan.
/// - `info` is null or a struct of as many bytes as its size says, which may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_plan_describe(plan: *const PlanHandle, info: *mut PlanInfo) -> Status {
    call(|| {
        // SAFETY: the caller's promise.
        let PlanHandle { plan, reason } = unsafe { borrow("plan", plan)? };
        // SAFETY: the caller's promise.
        unsafe { self::info(info, plan, reason) }
    })
}

/// Writes what a plan launches, as far as the caller's struct goes; with the bytes of workspace and of
/// counters that launches use.
///
/// # Safety
/// `info` is null or a struct of as many bytes as its size says, which may be written.
pub(crate) unsafe fn info(info: *mut PlanInfo, plan: &Plan, reason: &CStr) -> Result<(), Error> {
    // SAFETY: the caller's promise; the size is the first field.
    let size = *unsafe { borrow("info", info.cast_const().cast::<u64>())? };
    if size < PlanInfo::SIZE_V1 as u64 {
        let expected = "FERROFLASH_PLAN_INFO_INIT sets it to sizeof(ferroflash_plan_info_t)";
        return Err(invalid("info.size", size, expected));
    }
    let (contract, grid) = (plan.contract(), plan.grid());
    let ScratchBytes { workspace: workspace_bytes, counters: counters_bytes } = plan.scratch_bytes();
    let (entry, reason) = (entry_name(contract.symbol), reason.as_ptr());
    let (block, smem_bytes) = ([contract.threads, 1, 1], contract.smem_bytes.into());
    let known = PlanInfo { size, entry, reason, grid, block, smem_bytes, workspace_bytes, counters_bytes };
    let bytes = size_of::<PlanInfo>().min(usize::try_from(size).unwrap_or(usize::MAX));
    // SAFETY: not null and that many bytes, by the caller's promise; fields without padding between them.
    unsafe { info.cast::<u8>().copy_from_nonoverlapping((&raw const known).cast(), bytes) };
    Ok(())
}

/// Bytes of workspace with which a forward runs fastest.
///
/// # Safety
/// - Those of [`ferroflash_plan_create`], but for the plan.
/// - `bytes` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_workspace_size(
    context: *const Context,
    forward: *const ForwardArgs,
    bytes: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(forward)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        let forward = unsafe { args.forward()? }.scratch(Scratch::Fastest);
        let needed = context.0.plan(&forward)?.scratch_bytes().workspace;
        // SAFETY: the caller's promise.
        let bytes =
            unsafe { bytes.as_mut() }.ok_or_else(|| invalid("bytes", "NULL", "it must not be null"))?;
        *bytes = needed;
        Ok(())
    })
}

/// Loads the plan's kernels.
///
/// # Safety
/// `context` and `plan` are null or live, and belong together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_load(context: *const Context, plan: *const PlanHandle) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, plan) = unsafe { (borrow("context", context)?, borrow("plan", plan)?) };
        context.0.load(&plan.plan)
    })
}

/// Enqueues a planned forward.
///
/// # Safety
/// - Those of [`ferroflash_plan_create`], and `plan` is null or a live plan of this context.
/// - `stream` is a stream of the CUDA context, or null.
/// - Every tensor is device memory of the CUDA context as far as its strides reach, and the workspace as its
///   size says, until the launch has run, and until then nothing else writes what it reads or touches what it
///   writes, but in the order of the same stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_launch(
    context: *const Context,
    plan: *const PlanHandle,
    forward: *const ForwardArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, plan, args) =
            unsafe { (borrow("context", context)?, borrow("plan", plan)?, read(forward)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        unsafe { context.0.launch(&plan.plan, &args.forward()?, &RawStream::from_raw(stream)) }
    })
}

/// Plans and enqueues a forward.
///
/// # Safety
/// Those of [`ferroflash_launch`], but for the plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_forward(
    context: *const Context,
    forward: *const ForwardArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller's promises.
        let (context, args) = unsafe { (borrow("context", context)?, read(forward)?) };
        // SAFETY: the caller's promise; the name is used in this call alone.
        unsafe { enqueue(context, &args.forward()?, stream) }
    })
}

/// Plans and enqueues a request.
///
/// # Safety
/// - `stream` is a stream of the CUDA context, or null.
/// - The memory that the request names is device memory of the CUDA context until the launch has run, and
///   until then nothing else writes what it reads or touches what it writes, but in the order of the same
///   stream.
pub(crate) unsafe fn enqueue<R: Request>(
    context: &Context,
    request: &R,
    stream: *mut c_void,
) -> Result<(), Error> {
    let plan = context.0.plan(request)?;
    // SAFETY: the caller's promises.
    unsafe { context.0.launch(&plan, request, &RawStream::from_raw(stream)) }
}

/// Drops a handle.
///
/// # Safety
/// It is null, or came from [`store`] and is not used again.
pub(crate) unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // There are no words for a failing destruction, but a panic must not pass.
        call(|| {
            // SAFETY: not null, and the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
