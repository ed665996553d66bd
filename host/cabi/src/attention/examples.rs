//! Example structs of callers, for tests.
use crate::structs::AttentionArgs;
use ferroflash::Error;
use ferroflash::request::AttentionRequest;
use std::ffi::c_void;

/// The strides of one query of 32 heads of 128 columns.
const LLAMA: [i64; 4] = [32 * 128, 32 * 128, 128, 1];

/// Returns a device address.
pub(crate) const fn at<T>(n: usize) -> *const T {
    std::ptr::without_provenance(n << 40)
}

/// Returns a request with three sequences of 5 queries and 7 keys.
pub(crate) fn tensors() -> AttentionArgs {
    // SAFETY: zero bytes are a valid value of every field.
    let none: AttentionArgs = unsafe { std::mem::zeroed() };
    AttentionArgs {
        q: at(1),
        k: at(2),
        v: at(3),
        o: at::<c_void>(4).cast_mut(),
        batch: 3,
        seqlen_q: 5,
        seqlen_k: 7,
        heads_q: 4,
        heads_k: 2,
        head_dim: 64,
        q_strides: [5 * 256, 256, 64, 1],
        softcap: 5.0,
        ..none
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

pub(crate) fn request(args: &AttentionArgs) -> Result<AttentionRequest<'static>, Error> {
    // SAFETY: the name is null or static.
    unsafe { args.request() }
}

pub(crate) fn valid(args: &AttentionArgs) -> AttentionRequest<'static> {
    request(args).expect("valid")
}
