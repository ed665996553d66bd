//! Plans behind handles: the library validates a request once and launches it many times.
use crate::args::{Args, Ask, read};
use crate::call::{Status, borrow, call, invalid, write};
use crate::context::{Context, destroy};
use crate::entries::entry_name;
use crate::layout::is_plain;
use crate::structs::{AttentionArgs, PlanInfo};
use ferroflash::Error;
use ferroflash::plan::{AnyPlan, AnyRequest, ScratchBytes};
use ferroflash::request::Scratch;
use std::ffi::CString;

/// `ferroflash_plan_t`.
pub struct PlanHandle {
    pub(crate) plan: AnyPlan,
    reason: CString,
}

/// Frees a plan. Does nothing for null.
///
/// # Safety
/// `plan` is null, or came from a function that creates plans, is destroyed once, and is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_plan_destroy(plan: *mut PlanHandle) {
    // SAFETY: the caller makes the promises of `destroy`.
    unsafe { destroy(plan) };
}

/// Describes a plan, in the fields that the caller's struct has.
///
/// # Safety
/// - `plan` is null or a live plan.
/// - `info` is null or a writable struct with the number of bytes that its size field states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_plan_describe(plan: *const PlanHandle, info: *mut PlanInfo) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid; the size is the first field.
        let (handle, size) = unsafe { (borrow("plan", plan)?, *borrow("info", info.cast::<u64>())?) };
        if size < PlanInfo::LEAST as u64 {
            let expected = "FERROFLASH_PLAN_INFO_INIT sets it to sizeof(ferroflash_plan_info_t)";
            return Err(invalid("info.size", size, expected));
        }
        let known = handle.info(size);
        let bytes = size_of::<PlanInfo>().min(usize::try_from(size).unwrap_or(usize::MAX));
        const { assert!(is_plain(PlanInfo::FIELDS, size_of::<PlanInfo>())) }
        // SAFETY: the pointer is not null, and the caller promises that it has this number of bytes; the
        // struct has no padding.
        unsafe { info.cast::<u8>().copy_from_nonoverlapping((&raw const known).cast(), bytes) };
        Ok(())
    })
}

impl PlanHandle {
    /// Validates a request and chooses its kernels.
    pub(crate) fn new(context: &Context, request: &AnyRequest<'_>) -> Result<Self, Error> {
        let plan = context.plan(request)?;
        let reason = CString::new(plan.reason()).unwrap_or_default();
        Ok(PlanHandle { plan, reason })
    }

    fn info(&self, size: u64) -> PlanInfo {
        let contract = self.plan.contract();
        let ScratchBytes { workspace, counters } = self.plan.scratch_bytes();
        PlanInfo {
            size,
            entry: entry_name(contract.symbol),
            reason: self.reason.as_ptr(),
            grid: self.plan.grid(),
            block: [contract.threads, 1, 1],
            smem_bytes: contract.smem_bytes.into(),
            workspace_bytes: workspace,
            counters_bytes: counters,
        }
    }
}

/// Returns the numbers of bytes of workspace and of counters that the fastest kernel for a request uses.
///
/// # Safety
/// - `context` and `attention` meet the requirements of
///   [`ferroflash_plan_create`](crate::ferroflash_plan_create).
/// - `workspace_bytes` and `counters_bytes` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_scratch_size(
    context: *const Context,
    attention: *const AttentionArgs,
    workspace_bytes: *mut u64,
    counters_bytes: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, args) = unsafe { (borrow("context", context)?, read(attention)?) };
        // SAFETY: the caller promises that `config` is null or a string. Only this call uses the name.
        let request = unsafe { args.request()? }.scratch(Scratch::Fastest);
        let ScratchBytes { workspace, counters } = context.plan(&request)?.scratch_bytes();
        // SAFETY: the caller promises that both are null or may be written.
        unsafe {
            write("workspace_bytes", workspace_bytes, workspace)?;
            write("counters_bytes", counters_bytes, counters)
        }
    })
}

/// Loads the plan's kernels.
///
/// # Safety
/// `context` and `plan` are null or live, and `plan` was created with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_load(context: *const Context, plan: *const PlanHandle) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or live.
        let (context, handle) = unsafe { (borrow("context", context)?, borrow("plan", plan)?) };
        context.load(&handle.plan)
    })
}
