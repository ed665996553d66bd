//! The functions that plan and launch requests. One table declares the functions of all structs.
use crate::args::{Ask, read};
use crate::call::{Status, borrow, call, create};
use crate::context::Context;
use crate::plan::PlanHandle;
use crate::structs::{AppendArgs, AttentionArgs, BackwardArgs, MergeArgs};
use ferroflash::plan::AnyRequest;
use std::ffi::c_void;

/// Declares the functions of the structs. One function plans and enqueues a request. For some structs, one
/// function makes a plan, and one function enqueues it.
macro_rules! functions {
    ($($args:ty, $what:literal: $run:ident $(, $create:ident, $launch:ident)?;)*) => {$(
        #[doc = concat!("Plans and enqueues ", $what, ".")]
        ///
        /// # Safety
        /// - `context` is null or a live context.
        /// - `args` is null or a struct with the number of bytes that its size field states. Its pointers to
        ///   host memory are null or valid, as `ferroflash.h` documents them.
        /// - `stream` is a stream of the CUDA context, or null.
        /// - Every tensor is device memory of the CUDA context, as far as its strides reach, until the launch
        ///   has run. Workspace and counters have their stated sizes. Until then, other work writes none of
        ///   the inputs, and does not touch the outputs, except in the order of this stream.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $run(
            context: *const Context,
            args: *const $args,
            stream: *mut c_void,
        ) -> Status {
            call(|| {
                // SAFETY: the caller promises that both are null or valid.
                let (context, args) = unsafe { (borrow("context", context)?, read(args)?) };
                // SAFETY: the caller promises valid memory and a valid stream. Only this call uses the
                // request.
                unsafe {
                    let request = args.request()?;
                    context.launch(&context.plan(&request)?, &request, stream)
                }
            })
        }

        $(
            #[doc = concat!("Validates ", $what, " and chooses its kernels.")]
            ///
            /// # Safety
            #[doc = concat!("- `context` and `args` are as in [`", stringify!($run), "`].")]
            /// - `plan` may be written.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $create(
                context: *const Context,
                args: *const $args,
                plan: *mut *mut PlanHandle,
            ) -> Status {
                let made = || {
                    // SAFETY: the caller promises that both are null or valid.
                    let (context, args) = unsafe { (borrow("context", context)?, read(args)?) };
                    // SAFETY: the caller promises valid pointers. Only this call uses the request.
                    PlanHandle::new(context, &unsafe { args.request()? }.into())
                };
                // SAFETY: the caller promises that `plan` may be written.
                unsafe { create("plan", plan, made) }
            }

            #[doc = concat!("Enqueues a plan of ", $what, ".")]
            ///
            /// # Safety
            #[doc = concat!("- `context`, `args` and `stream` are as in [`", stringify!($run), "`].")]
            /// - `plan` is null or a live plan of this context.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $launch(
                context: *const Context,
                plan: *const PlanHandle,
                args: *const $args,
                stream: *mut c_void,
            ) -> Status {
                call(|| {
                    // SAFETY: the caller promises that both are null or valid.
                    let (context, handle) = unsafe { (borrow("context", context)?, borrow("plan", plan)?) };
                    // SAFETY: the caller promises a valid struct, valid memory and a valid stream. Only this
                    // call uses the request.
                    unsafe {
                        let request: AnyRequest<'_> = read(args)?.request()?.into();
                        context.launch(&handle.plan, &request, stream)
                    }
                })
            }
        )?
    )*};
}
functions! {
    AttentionArgs, "an attention": ferroflash_attention, ferroflash_plan_create, ferroflash_launch;
    BackwardArgs, "a backward pass":
        ferroflash_backward, ferroflash_backward_plan_create, ferroflash_backward_launch;
    AppendArgs, "an append to a KV cache": ferroflash_append;
    MergeArgs, "a merge of partial states": ferroflash_merge;
}
