//! `ferroflash_append`: writes new keys and values into a KV cache.
use crate::args::{at_tokens, dtype, extent, is_wide, read, scale, token_scales, view};
use crate::call::{Status, borrow, call, invalid};
use crate::context::{Context, enqueue};
use crate::structs::AppendArgs;
use ferroflash::request::{Append, KvPages, Slots};
use ferroflash::{DType, Error};
use std::ffi::c_void;

impl AppendArgs {
    /// Converts the struct to a request of the Rust library. Checks only the rules that the
    /// request's types cannot express.
    pub(crate) fn append(&self) -> Result<Append, Error> {
        let append = self.unrotated()?;
        Ok(match self.rotary(&append.k)? {
            Some(rotary) => append.rotary(rotary),
            None => append,
        })
    }

    /// Converts everything except the rotation.
    fn unrotated(&self) -> Result<Append, Error> {
        let [tokens, heads] = [extent("tokens", self.tokens)?, extent("heads", self.heads)?];
        let head_dim = extent("head_dim", self.head_dim)?;
        let dtype = [dtype("dtype", self.dtype)?, dtype("cache_dtype", self.cache_dtype)?];
        let tensor = |address, strides| at_tokens(address, dtype[0], [tokens, heads, head_dim], strides);
        let shape = [extent("pages", self.pages)?, extent("page", self.page)?, heads, head_dim];
        let pages = |address: *mut c_void| {
            let [page, key, head] = self.cache_strides;
            view(address, dtype[1], shape, [page, key, head, 1])
        };
        let slots = shape[0].saturating_mul(shape[1]);
        let per_head = |value, scales| match dtype[1] {
            DType::Int8 => token_scales(value, scales, [0; 2], [slots, heads]),
            _ => scale(value, scales, [0, 1], [1, heads]),
        };
        let (k, keys) = (tensor(self.k, self.k_strides), pages(self.k_cache));
        let [k_scale, v_scale] =
            [per_head(self.k_scale, self.k_scales), per_head(self.v_scale, self.v_scales)];
        let wide = is_wide("wide_slots", self.wide_slots)?;
        let slots = Slots { address: self.slots as u64, elements: tokens as u64, wide };
        if let Some(columns) = self.latent()? {
            return Ok(Append::latent(k, KvPages::latent(keys, columns).scales(k_scale, v_scale), slots));
        }
        let cache = KvPages::new(keys, pages(self.v_cache)).scales(k_scale, v_scale);
        Ok(Append::new(k, tensor(self.v, self.v_strides), cache, slots))
    }

    /// Returns the number of columns of a latent cache's values. The values are the first columns of keys.
    fn latent(&self) -> Result<Option<usize>, Error> {
        if self.head_dim_v == 0 {
            return Ok(None);
        }
        for (name, at) in [("v", self.v), ("v_cache", self.v_cache.cast_const())] {
            if !at.is_null() {
                let expected = "it must be NULL: the values of a latent cache are columns of k";
                return Err(invalid(name, format_args!("{at:p}"), expected));
            }
        }
        extent("head_dim_v", self.head_dim_v).map(Some)
    }
}

/// Writes keys and values of new tokens to their slots in a KV cache.
///
/// # Safety
/// - `context` is null or a live context; `append` is null or a struct with the number of bytes that its size
///   field states.
/// - `stream` is a stream of the CUDA context, or null.
/// - Every tensor is device memory of the CUDA context, as far as its strides reach, until the launch has
///   run. Until then, other work writes none of the inputs, and does not touch the written rows, except in
///   the order of this stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_append(
    context: *const Context,
    append: *const AppendArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, args) = unsafe { (borrow("context", context)?, read(append)?) };
        // SAFETY: the caller promises valid memory and a valid stream.
        unsafe { enqueue(context, &args.append()?, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rotary::example::args;
    use ferroflash::request::KvScale;
    use ferroflash::request::TokenScales;
    use ferroflash::{Capabilities, plan};

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let card = Capabilities::profile("l4").expect("known");
        let plain = args().append().expect("valid");
        assert_eq!(plan(&plain, card).expect("valid").contract().symbol, "append_copy");
        assert_eq!((plain.k.shape, plain.k.elements), ([1, 10, 2, 64], 1280));
        assert_eq!((plain.pages.keys.shape, plain.pages.values.elements), ([7, 16, 2, 64], 7 * 16 * 128));
        assert_eq!((plain.slots.elements, plain.slots.wide), (10, false));
        let eight = AppendArgs {
            cache_dtype: 2,
            wide_slots: 1,
            k_scale: 0.5,
            v_scales: (6usize << 30) as *const f32,
            ..args()
        };
        let eight = eight.append().expect("valid");
        assert_eq!(plan(&eight, card).expect("valid").contract().symbol, "append_f16_e4m3_native");
        assert_eq!(eight.pages.keys.dtype, DType::E4m3);
        let heads = KvScale::Device { address: 6 << 30, elements: 2, strides: [0, 1] };
        assert_eq!((eight.pages.scales, eight.slots.wide), ([KvScale::Value(0.5), heads], true));
        let at = |n: usize| (n << 30) as *const f32;
        let integers = AppendArgs { cache_dtype: 4, k_scales: at(6), v_scales: at(7), ..args() };
        let integers = integers.append().expect("valid");
        assert_eq!(plan(&integers, card).expect("valid").contract().symbol, "append_f16_int8");
        let tokens = |n: u64| KvScale::Tokens(TokenScales::contiguous(n << 30, 7 * 16 * 2, 2));
        assert_eq!(integers.pages.scales, [tokens(6), tokens(7)]);
        let none = std::ptr::null_mut();
        let latent =
            AppendArgs { heads: 1, head_dim: 576, head_dim_v: 512, v: none, v_cache: none, ..args() };
        let latent = AppendArgs { k_strides: [576; 2], cache_strides: [16 * 576, 576, 576], ..latent };
        let rows = latent.append().expect("valid");
        assert_eq!(plan(&rows, card).expect("valid").contract().symbol, "append_copy");
        assert_eq!((rows.v.shape[3], rows.pages.latent_columns()), (512, Some(512)));
        let refused = |args: AppendArgs| args.append().expect_err("refused").to_string();
        assert!(refused(AppendArgs { cache_dtype: 9, ..args() }).contains("cache_dtype: 9"));
        assert!(refused(AppendArgs { page: -1, ..args() }).contains("page: -1"));
        assert!(refused(AppendArgs { head_dim_v: -1, ..latent }).contains("head_dim_v: -1"));
        let other = latent.k_cache;
        assert!(refused(AppendArgs { v: other, ..latent }).contains("invalid v: 0x"));
        assert!(refused(AppendArgs { v_cache: other, ..latent }).contains("invalid v_cache: 0x"));
    }
}
