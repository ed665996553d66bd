//! `ferroflash_append_t`.
use crate::args::{args, reach};
use crate::layout::c_struct;
use ferroflash::DType;
use ferroflash::request::TensorView;
use std::ffi::c_void;

c_struct! {
    /// `ferroflash_append_t`.
    AppendArgs {
        size: u64;
        k, v: *const c_void;
        k_cache, v_cache: *mut c_void;
        slots: *const c_void;
        tokens, heads, head_dim, pages, page: i64;
        k_strides, v_strides: [i64; 2];
        cache_strides: [i64; 3];
        dtype, cache_dtype, wide_slots: i32;
        k_scale, v_scale: f32;
        k_scales, v_scales: *const f32;
        head_dim_v: i64;
        rotary_cos, rotary_sin, positions, q: *const c_void;
        rotated_q: *mut c_void;
        rotary_rows, rotary_dims, rotary_stride, rotary_first, heads_q: i64;
        q_strides, rotated_q_strides: [i64; 2];
        rotary_dtype, rotary_style, wide_positions, reserved: i32;
    }
}
args!(AppendArgs, "append", "FERROFLASH_APPEND_INIT", 184);

/// Returns a view of `[tokens, heads, head_dim]`, with the strides of a token and of a head.
pub(crate) fn at_tokens(
    address: *const c_void,
    dtype: DType,
    [tokens, heads, head_dim]: [usize; 3],
    [token, head]: [i64; 2],
) -> TensorView {
    let (shape, strides) = ([1, tokens, heads, head_dim], [0, token, head, 1]);
    TensorView::new(address as u64, reach(&shape, &strides), dtype, shape, strides)
}

#[cfg(test)]
pub(crate) mod example {
    use super::*;

    /// A valid append without a rotation.
    pub(crate) fn args() -> AppendArgs {
        // SAFETY: zero bytes are a valid value of every field.
        let args: AppendArgs = unsafe { std::mem::zeroed() };
        let place = |n: usize| (n << 30) as *mut c_void;
        AppendArgs {
            size: size_of::<AppendArgs>() as u64,
            k: place(1),
            v: place(2),
            k_cache: place(3),
            v_cache: place(4),
            slots: place(5),
            tokens: 10,
            heads: 2,
            head_dim: 64,
            pages: 7,
            page: 16,
            k_strides: [128, 64],
            v_strides: [128, 64],
            cache_strides: [16 * 128, 128, 64],
            ..args
        }
    }
}
