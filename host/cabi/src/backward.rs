//! `ferroflash_backward`: the gradients of an attention.
use crate::args::{present, reach, read, view};
use crate::attention::bias_like;
use crate::call::{Status, borrow, call, create, invalid};
use crate::context::{Context, enqueue};
use crate::plan::PlanHandle;
use crate::structs::BackwardArgs;
use ferroflash::Error;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{AttentionBackward, Bias, LseView, Scratch, Sinks};
use std::ffi::c_void;

impl BackwardArgs {
    /// Converts the struct to a request. Checks only the rules that the request's types cannot express.
    ///
    /// # Safety
    /// `forward` is null or a struct with the number of bytes that its size field states; its `config` is
    /// null or a string that lives for `'a`.
    unsafe fn request<'a>(&self) -> Result<AttentionBackward<'a>, Error> {
        if self.forward.is_null() {
            let expected = "it must point to the ferroflash_attention_t whose launch has written o and lse";
            return Err(invalid("forward", "NULL", expected));
        }
        // SAFETY: the pointer is not null; the caller promises a struct, and null or a string in it.
        let forward = unsafe { read(self.forward)?.request()? };
        let [q, k, v, o] = forward.problem().shapes();
        let dtype = forward.q.dtype;
        let d_o = view(self.d_o, dtype, o, self.d_o_strides);
        let dq = view(self.dq, dtype, q, self.dq_strides);
        let dk = view(self.dk, dtype, k, self.dk_strides);
        let dv = view(self.dv, dtype, v, self.dv_strides);
        let workspace =
            present(self.workspace).map(|address| Scratch::workspace(address, self.workspace_bytes));
        let mut request = AttentionBackward::new(forward, d_o, dq, dk, dv);
        request.d_lse = present(self.d_lse).map(|address| {
            let (shape, [batch, head]) = ([o[0], o[2], o[1]], self.d_lse_strides);
            LseView::new(address, reach(&shape, &[batch, head, 1]), shape, self.d_lse_strides)
        });
        let elements = forward.q.shape[2] as u64;
        request.dsinks = present(self.dsinks).map(|address| Sinks { address, elements });
        request.dbias = present(self.dbias).map(|address| {
            // Validation refuses the gradient of a bias that is not there.
            let bias = forward.scores.bias.unwrap_or(Bias::new(0, 0, dtype, [1; 4], [0; 4]));
            bias_like(address, bias.dtype, bias.extents(), self.dbias_strides)
        });
        Ok(request.scratch(workspace.unwrap_or(Scratch::Fastest)))
    }
}

/// Validates a backward pass and chooses its kernels.
///
/// # Safety
/// - `context` is null or a live context.
/// - `backward` is null or a struct with the number of bytes that its size field states; its `forward` is
///   null or such a struct, whose `config` is null or a string.
/// - `plan` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_backward_plan_create(
    context: *const Context,
    backward: *const BackwardArgs,
    plan: *mut *mut PlanHandle,
) -> Status {
    let made = || {
        // SAFETY: the caller promises that both are null or valid.
        let (context, args) = unsafe { (borrow("context", context)?, read(backward)?) };
        // SAFETY: the caller promises a valid `forward`. Only this call uses the name in it.
        PlanHandle::new(context, &AnyRequest::Backward(unsafe { args.request()? }))
    };
    // SAFETY: the caller promises that `plan` may be written.
    unsafe { create("plan", plan, made) }
}

/// Enqueues a plan of a backward pass.
///
/// # Safety
/// - The caller meets the requirements of [`ferroflash_backward_plan_create`]; `plan` is null or a live plan
///   of this context.
/// - `stream` is a stream of the CUDA context, or null.
/// - Every tensor is device memory of the CUDA context, as far as its strides reach, until the launch has
///   run. The workspace has its stated size. Until then, other work writes none of the inputs, and does not
///   touch the outputs, except in the order of this stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_backward_launch(
    context: *const Context,
    plan: *const PlanHandle,
    backward: *const BackwardArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, handle) = unsafe { (borrow("context", context)?, borrow("plan", plan)?) };
        // SAFETY: the caller promises valid structs, memory and stream. Only this call uses the name.
        unsafe { handle.launch(context, &AnyRequest::Backward(read(backward)?.request()?), stream) }
    })
}

/// Plans and enqueues a backward pass.
///
/// # Safety
/// The caller meets the requirements of [`ferroflash_backward_launch`], except for `plan`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_backward(
    context: *const Context,
    backward: *const BackwardArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, args) = unsafe { (borrow("context", context)?, read(backward)?) };
        // SAFETY: the caller promises valid structs, memory and stream. Only this call uses the name.
        unsafe { enqueue(context, &args.request()?, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::examples::{at, cache, tensors};
    use crate::structs::AttentionArgs;
    use ferroflash::{Capabilities, DType, plan};

    /// Returns the attention of [`tensors`] with an LSE, and strides of contiguous tensors.
    fn forward() -> AttentionArgs {
        let keys = [7 * 128, 128, 64, 1];
        AttentionArgs {
            lse: at::<f32>(5).cast_mut(),
            lse_strides: [20, 5],
            k_strides: keys,
            v_strides: keys,
            o_strides: tensors().q_strides,
            ..tensors()
        }
    }

    fn backward(forward: &AttentionArgs) -> BackwardArgs {
        let out = |n| at::<c_void>(n).cast_mut();
        // SAFETY: zero bytes are a valid value of every field.
        let none: BackwardArgs = unsafe { std::mem::zeroed() };
        BackwardArgs {
            forward,
            d_o: at(6),
            dq: out(7),
            dk: out(8),
            dv: out(9),
            d_o_strides: forward.o_strides,
            dq_strides: forward.q_strides,
            dk_strides: forward.k_strides,
            dv_strides: forward.v_strides,
            ..none
        }
    }

    type Change = fn(&mut BackwardArgs);

    fn request(args: &BackwardArgs) -> Result<AttentionBackward<'static>, Error> {
        // SAFETY: `forward` is null or a struct of this version, whose name is null.
        unsafe { args.request() }
    }

    #[test]
    fn the_request_has_the_forwards_shapes() {
        let forward = AttentionArgs { size: size_of::<AttentionArgs>() as u64, ..forward() };
        let (queries, keys) = ([3, 5, 4, 64], [3, 7, 2, 64]);
        let r = request(&backward(&forward)).expect("valid");
        let shapes = [r.d_o, r.dq, r.dk, r.dv].map(|view| view.shape);
        assert_eq!(shapes, [queries, queries, keys, keys]);
        assert_eq!([r.d_o, r.dq, r.dk, r.dv].map(|view| view.address >> 40), [6, 7, 8, 9]);
        assert_eq!((r.dk.elements, r.d_lse, r.scratch), (3 * 7 * 128, None, Scratch::Fastest));
        let args = BackwardArgs { d_lse: at(10), d_lse_strides: [0, 5], ..backward(&forward) };
        let workspace = at::<c_void>(11).cast_mut();
        let r = request(&BackwardArgs { workspace, workspace_bytes: 4096, ..args }).expect("valid");
        let d_lse = r.d_lse.expect("asked for");
        assert_eq!((d_lse.shape, d_lse.strides, d_lse.elements), ([3, 4, 5], [0, 5], 3 * 5 + 4 + 1));
        assert_eq!((r.scratch, r.dsinks), (Scratch::workspace(11 << 40, 4096), None));
        let r = request(&BackwardArgs { dsinks: at::<f32>(12).cast_mut(), ..args }).expect("valid");
        assert_eq!(r.dsinks, Some(Sinks { address: 12 << 40, elements: 4 }));
        // The bias shares its rows among sequences.
        let forward = AttentionArgs { bias: at(13), bias_strides: [0, 40, 8], ..forward };
        let dbias = at::<c_void>(14).cast_mut();
        let r = request(&BackwardArgs { forward: &forward, dbias, dbias_strides: [160, 40, 8], ..args });
        let dbias = r.expect("valid").dbias.expect("asked for");
        assert_eq!(
            (dbias.shape, dbias.dtype, dbias.elements),
            ([1, 4, 5, 7], DType::F16, 3 * 40 + 4 * 8 + 8)
        );
    }

    #[test]
    fn plans_and_refusals() {
        let size = size_of::<AttentionArgs>() as u64;
        let card = Capabilities::profile("l4").expect("known");
        let planned = |forward: &AttentionArgs, change: Change| {
            let mut args = backward(forward);
            change(&mut args);
            plan(&request(&args)?, card)
        };
        let forward = AttentionArgs { size, ..forward() };
        let whole = planned(&forward, |_| {}).expect("planned");
        assert!(whole.contract().symbol.starts_with("bwd_"), "{}", whole.contract().symbol);
        assert!(whole.scratch_bytes().workspace > 0, "a workspace");
        let small = |args: &mut BackwardArgs| {
            (args.workspace, args.workspace_bytes) = (at::<c_void>(11).cast_mut(), 16);
        };
        let without_lse = AttentionArgs { lse: std::ptr::null_mut(), ..forward };
        let in_cache = AttentionArgs { size, lse: forward.lse, lse_strides: [32, 1], ..cache() };
        let of_size_8 = AttentionArgs { size: 8, ..forward };
        let cases: [(&AttentionArgs, Change, &str); 8] = [
            (&forward, |args| args.forward = std::ptr::null(), "forward: NULL"),
            (&forward, |args| args.dk = std::ptr::null_mut(), "dk"),
            (&forward, small, "workspace.bytes: 16"),
            (&forward, |args| args.dsinks = at::<f32>(12).cast_mut(), "dsinks"),
            (&forward, |args| args.dbias = at::<c_void>(12).cast_mut(), "dbias: some"),
            (&without_lse, |_| {}, "lse: none"),
            (&in_cache, |_| {}, "backward on a KV cache"),
            (&of_size_8, |_| {}, "attention.size: 8"),
        ];
        for (forward, change, words) in cases {
            let error = planned(forward, change).map(drop).expect_err(words).to_string();
            assert!(error.contains(words), "{error}, should have {words}");
        }
    }
}
