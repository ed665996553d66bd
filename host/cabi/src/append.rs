//! `ferroflash_append`: writes new keys and values into a KV cache.
use crate::args::{Ask, at_tokens, dtype, extent, is_wide, kv_scale, view};
use crate::call::invalid;
use crate::structs::AppendArgs;
use ferroflash::request::{Append, KvPages, Slots};
use ferroflash::spec::E4m3Scaled;
use ferroflash::{DType, Error};
use std::ffi::c_void;

impl Ask for AppendArgs {
    type Request<'a> = Append;

    unsafe fn request<'a>(&self) -> Result<Self::Request<'a>, Error> {
        let [tokens, heads] = [extent("tokens", self.tokens)?, extent("heads", self.heads)?];
        let head_dim = extent("head_dim", self.head_dim)?;
        let dtype = [dtype("dtype", self.dtype)?, dtype("cache_dtype", self.cache_dtype)?];
        let tensor = |address, strides| at_tokens(address, dtype[0], [tokens, heads, head_dim], strides);
        let columns = if dtype[1] == DType::E4m3Scaled { E4m3Scaled::ROW_BYTES } else { head_dim };
        let shape = [extent("pages", self.pages)?, extent("page", self.page)?, heads, columns];
        let pages = |address: *mut c_void| {
            let [page, key, head] = self.cache_strides;
            view(address, dtype[1], shape, [page, key, head, 1])
        };
        let extents = [[shape[0].saturating_mul(shape[1]), heads], [1, heads]];
        let strides = if dtype[1] == DType::Int8 { [0; 2] } else { [0, 1] };
        let (k, keys) = (tensor(self.k, self.k_strides), pages(self.k_cache));
        let [k_scale, v_scale] = [(self.k_scale, self.k_scales), (self.v_scale, self.v_scales)]
            .map(|given| kv_scale(dtype[1], given, strides, extents));
        let wide = is_wide("wide_slots", self.wide_slots)?;
        let slots = Slots { address: self.slots as u64, elements: tokens as u64, wide };
        let mut append = match self.latent()? {
            Some(columns) => Append::latent(k, KvPages::latent(keys, columns), slots),
            None => {
                let cache = KvPages::new(keys, pages(self.v_cache));
                Append::new(k, tensor(self.v, self.v_strides), cache, slots)
            }
        };
        append.pages = append.pages.scales(k_scale, v_scale);
        append.rotary = self.rotary(&append.k)?;
        Ok(append)
    }
}

impl AppendArgs {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{append, at, check_refusals, chosen, valid};
    use ferroflash::request::{KvScale, TokenScales};

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let plain = valid(&append());
        assert_eq!(chosen(&append(), "l4"), "append_copy");
        assert_eq!((plain.k.shape, plain.k.elements), ([1, 10, 2, 64], 1280));
        assert_eq!((plain.pages.keys.shape, plain.pages.values.elements), ([7, 16, 2, 64], 7 * 16 * 128));
        assert_eq!((plain.slots.elements, plain.slots.wide), (10, false));
        let args = AppendArgs { cache_dtype: 2, wide_slots: 1, k_scale: 0.5, v_scales: at(6), ..append() };
        let eight = valid(&args);
        assert_eq!(chosen(&args, "l4"), "append_f16_e4m3_native");
        assert_eq!(eight.pages.keys.dtype, DType::E4m3);
        let heads = KvScale::Device { address: 6 << 40, elements: 2, strides: [0, 1] };
        assert_eq!((eight.pages.scales, eight.slots.wide), ([KvScale::Value(0.5), heads], true));
        let integers = AppendArgs { cache_dtype: 4, k_scales: at(6), v_scales: at(7), ..append() };
        assert_eq!(chosen(&integers, "l4"), "append_f16_int8");
        let tokens = |n: u64| KvScale::Tokens(TokenScales::contiguous(n << 40, 7 * 16 * 2, 2));
        assert_eq!(valid(&integers).pages.scales, [tokens(6), tokens(7)]);
        let none = std::ptr::null_mut();
        let latent =
            AppendArgs { heads: 1, head_dim: 576, head_dim_v: 512, v: none, v_cache: none, ..append() };
        let latent = AppendArgs { k_strides: [576; 2], cache_strides: [16 * 576, 576, 576], ..latent };
        let rows = valid(&latent);
        assert_eq!(chosen(&latent, "l4"), "append_copy");
        assert_eq!((rows.v.shape[3], rows.pages.latent_columns()), (512, Some(512)));
        let scaled = AppendArgs { dtype: 1, cache_dtype: 5, cache_strides: [16 * 656, 656, 656], ..latent };
        let rows = valid(&scaled);
        assert_eq!(chosen(&scaled, "l4"), "append_bf16_e4m3_scaled_native");
        assert_eq!((rows.pages.keys.shape[3], rows.pages.keys.dtype), (656, DType::E4m3Scaled));
        check_refusals(&[
            (AppendArgs { dtype: 0, ..scaled }, "rows of 576 f16 and an e4m3_scaled latent cache"),
            (AppendArgs { k_scale: 0.5, ..scaled }, "cache.k_scale"),
            (AppendArgs { cache_dtype: 5, ..append() }, "f16 tokens and an e4m3_scaled cache"),
            (AppendArgs { cache_dtype: 9, ..append() }, "cache_dtype: 9"),
            (AppendArgs { page: -1, ..append() }, "page: -1"),
            (AppendArgs { head_dim_v: -1, ..latent }, "head_dim_v: -1"),
            (AppendArgs { v: at(3), ..latent }, "invalid v: 0x"),
            (AppendArgs { v_cache: at(3), ..latent }, "invalid v_cache: 0x"),
        ]);
    }
}
