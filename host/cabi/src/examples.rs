//! Example structs of callers, and a check of refusals, for tests.
use crate::args::{Args, Ask};
use crate::structs::{AppendArgs, AttentionArgs};
use ferroflash::plan::{AnyPlan, AnyRequest};
use ferroflash::{Capabilities, Error, plan};
use std::mem::MaybeUninit;

/// The strides of one query of 32 heads of 128 columns.
const LLAMA: [i64; 4] = [32 * 128, 32 * 128, 128, 1];

/// Returns a device address.
pub(crate) const fn at<T>(n: usize) -> *mut T {
    std::ptr::without_provenance_mut(n << 40)
}

/// Returns a struct whose fields are 0.
pub(crate) fn zeros<A: Args>() -> A {
    // SAFETY: zero bytes are a valid value of every field of an `Args`.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Returns a request with three sequences of 5 queries and 7 keys.
pub(crate) fn tensors() -> AttentionArgs {
    AttentionArgs {
        size: size_of::<AttentionArgs>() as u64,
        q: at(1),
        k: at(2),
        v: at(3),
        o: at(4),
        batch: 3,
        seqlen_q: 5,
        seqlen_k: 7,
        heads_q: 4,
        heads_k: 2,
        head_dim: 64,
        q_strides: [5 * 256, 256, 64, 1],
        softcap: 5.0,
        ..zeros()
    }
}

pub(crate) fn varlen() -> AttentionArgs {
    AttentionArgs { cu_seqlens_q: at(5), cu_seqlens_k: at(6), total_q: 11, total_k: 13, ..tensors() }
}

/// Returns a request of Llama 3 8B: 32 query heads on 8 key heads, pages of 16 keys.
pub(crate) fn cache() -> AttentionArgs {
    AttentionArgs {
        block_table: at(5),
        seqused_k: at(6),
        batch: 16,
        seqlen_q: 1,
        seqlen_k: 0,
        heads_q: 32,
        heads_k: 8,
        head_dim: 128,
        pages: 1000,
        page: 16,
        columns: 512,
        table_stride: 512,
        q_strides: LLAMA,
        o_strides: LLAMA,
        k_strides: [16 * 8 * 128, 8 * 128, 128, 1],
        v_strides: [16 * 8 * 128, 8 * 128, 128, 1],
        softcap: 0.0,
        ..tensors()
    }
}

/// Returns a request of DeepSeek's shape: 128 query heads on one latent head.
pub(crate) fn latent() -> AttentionArgs {
    AttentionArgs {
        heads_q: 128,
        heads_k: 1,
        head_dim: 576,
        head_dim_v: 512,
        v: std::ptr::null(),
        scale: 0.0721,
        q_strides: [128 * 576, 128 * 576, 576, 1],
        o_strides: [128 * 512, 128 * 512, 512, 1],
        k_strides: [16 * 576, 576, 576, 1],
        ..cache()
    }
}

/// Returns an append without a rotation.
pub(crate) fn append() -> AppendArgs {
    AppendArgs {
        k: at(1),
        v: at(2),
        k_cache: at(3),
        v_cache: at(4),
        slots: at(5),
        tokens: 10,
        heads: 2,
        head_dim: 64,
        pages: 7,
        page: 16,
        k_strides: [128, 64],
        v_strides: [128, 64],
        cache_strides: [16 * 128, 128, 64],
        ..zeros()
    }
}

/// Returns the request of a struct.
pub(crate) fn valid<A: Ask>(args: &A) -> A::Request<'static> {
    // SAFETY: pointers to host memory are null or valid, and names are static.
    unsafe { args.request() }.unwrap_or_else(|e| panic!("{e}"))
}

/// Plans the request of a struct for a common card.
pub(crate) fn planned<A: Ask>(args: &A, card: &str) -> Result<AnyPlan, Error> {
    // SAFETY: pointers to host memory are null or valid, and names are static.
    let request: AnyRequest<'static> = unsafe { args.request()? }.into();
    plan(&request, Capabilities::profile(card).expect("known"))
}

/// Returns the kernel for the request of a struct on a common card.
pub(crate) fn chosen<A: Ask>(args: &A, card: &str) -> &'static str {
    planned(args, card).expect("planned").contract().symbol
}

/// Checks that a conversion or a plan fails with these words.
pub(crate) fn check_refusals<A: Ask>(cases: &[(A, &str)]) {
    for (args, words) in cases {
        let error = planned(args, "l4").map(drop).expect_err(words).to_string();
        assert!(error.contains(words), "{error} should contain {words}");
    }
}
