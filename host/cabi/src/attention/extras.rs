//! The fields of `ferroflash_attention_t` for scales of e4m3, for biases, and for masks with a length,
//! prefixes or bits.
use crate::args::{constant, dtype, extent, present, reach};
use crate::call::invalid;
use crate::structs::AttentionArgs;
use ferroflash::plan::Problem;
use ferroflash::request::{Bias, Descales, Index, KvScale, Mask, MaskBits, Prefix};
use ferroflash::{DType, Error};

impl AttentionArgs {
    /// Returns the element type of O, for this type of Q.
    pub(super) fn o_dtype(&self, dtype: DType) -> Result<DType, Error> {
        let is_cache = self.cu_seqlens_k.is_null() && !self.seqused_k.is_null();
        if dtype == DType::E4m3 && !is_cache {
            self.has_no_cache_scales()?;
            let expected = "it must be 0 for an o of bf16, or 1 for f16";
            return constant("output_f16", self.output_f16, &[DType::Bf16, DType::F16], expected);
        }
        let expected = "it must be 0, because o has the type of q: only tensors of e4m3 have another o";
        constant("output_f16", self.output_f16, &[dtype], expected)
    }

    /// Checks that tensors of e4m3 do not have the scales of a KV cache, which no kernel would read.
    fn has_no_cache_scales(&self) -> Result<(), Error> {
        let scales = [
            (["k_scale", "k_scales", "k_descale"], self.k_scale, self.k_scales),
            (["v_scale", "v_scales", "v_descale"], self.v_scale, self.v_scales),
        ];
        let given = scales.into_iter().find(|(_, one, all)| *one != 0.0 || !all.is_null());
        given.map_or(Ok(()), |([one_name, name, own], one, all)| {
            let expected = format_args!("tensors have no scales of a KV cache; set {own}, in device memory");
            Err(match present(all) {
                Some(address) => invalid(name, format_args!("{address:#x}"), expected),
                None => invalid(one_name, one, expected),
            })
        })
    }

    /// Returns the scales of Q, K and V of e4m3, for these numbers of sequences and key heads.
    pub(super) fn descales(&self, [batch, heads]: [usize; 2]) -> Descales {
        let scale = |scales, strides: [i64; 2]| {
            present(scales).map_or(KvScale::One, |address| KvScale::Device {
                address,
                elements: reach(&[batch, heads], &strides),
                strides,
            })
        };
        Descales::new(
            scale(self.q_descale, self.q_descale_strides),
            scale(self.k_descale, self.k_descale_strides),
            scale(self.v_descale, self.v_descale_strides),
        )
    }

    /// Returns the bias of a request with these sizes, if there is one. If a dimension's stride is 0, all
    /// indices of this dimension use the same elements of the bias.
    pub(super) fn bias(&self, p: &Problem) -> Result<Option<Bias>, Error> {
        let Some(address) = present(self.bias) else { return Ok(None) };
        let (shape, dtype) =
            ([p.batch, p.heads_q, p.seqlen_q, p.seqlen_k], dtype("bias_dtype", self.bias_dtype)?);
        Ok(Some(bias_like(address, dtype, shape, self.bias_strides)))
    }

    /// Returns the mask of a request with these sizes.
    pub(super) fn mask(&self, p: &Problem) -> Result<Mask, Error> {
        let number = || {
            u32::try_from(self.mask_length)
                .map_err(|_| invalid("mask_length", self.mask_length, "it must be 0 or more"))
        };
        let side = |what, keys: i32| match keys {
            -1 => Ok(None),
            _ => u32::try_from(keys)
                .map(Some)
                .map_err(|_| invalid(what, keys, "it must be -1 (unbounded), 0 or more")),
        };
        match self.mask {
            0 => Ok(Mask::Full),
            1 => Ok(Mask::Causal),
            3 => {
                let left = side("window_left", self.window_left)?;
                Ok(Mask::Window { left, right: side("window_right", self.window_right)? })
            }
            4 => Ok(Mask::Prefix(match present(self.prefix_lengths) {
                Some(address) => Prefix::Each(Index::new(address, p.batch as u64)),
                None => Prefix::All(number()?),
            })),
            5 => Ok(Mask::Chunked { chunk: number()? }),
            6 => {
                let Some(address) = present(self.mask_bits) else {
                    let expected = "FERROFLASH_MASK_BITS needs bits in device memory; set mask_bits";
                    return Err(invalid("mask_bits", "NULL", expected));
                };
                let columns = match self.mask_bits_keys {
                    0 => p.seqlen_k,
                    keys => extent("mask_bits_keys", keys)?,
                };
                let (shape, strides) = ([p.batch, p.heads_q, p.seqlen_q, columns], self.mask_bits_strides);
                let rows = [p.batch, p.heads_q, p.seqlen_q, columns.div_ceil(8)];
                let [batch, head, row] = strides;
                let bytes = reach(&rows, &[batch, head, row, 1]);
                Ok(Mask::Bits(MaskBits::new(address, bytes, shape, strides)))
            }
            other => Err(invalid("mask", other, "it must be a FERROFLASH_MASK_ value")),
        }
    }
}

/// Returns a bias, or the gradient of one.
pub(crate) fn bias_like(address: u64, dtype: DType, shape: [usize; 4], [batch, head, row]: [i64; 3]) -> Bias {
    let strides = [batch, head, row, 1];
    // Kernels read rows of 16-bit elements in 32-bit words.
    let more = if dtype == DType::F32 { 0 } else { shape[3] as u64 % 2 };
    let elements = reach(&shape, &strides).saturating_add(more);
    Bias::new(address, elements, dtype, shape, strides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, cache, check_refusals, tensors, valid, varlen};

    #[test]
    fn biases_of_any_strides() {
        let all =
            AttentionArgs { bias: at(9), bias_strides: [4 * 5 * 8, 5 * 8, 8], bias_dtype: 1, ..tensors() };
        let bias = valid(&all).scores.bias.expect("a bias");
        assert_eq!((bias.address, bias.dtype, bias.shape), (9 << 40, DType::Bf16, [3, 4, 5, 7]));
        assert_eq!((bias.strides, bias.elements), ([160, 40, 8, 1], 2 * 160 + 3 * 40 + 4 * 8 + 6 + 1 + 1));
        let shared = AttentionArgs { bias_strides: [0, 7, 0], bias_dtype: 3, ..all };
        let bias = valid(&shared).scores.bias.expect("a bias");
        assert_eq!((bias.dtype, bias.strides, bias.elements), (DType::F32, [0, 7, 0, 1], 3 * 7 + 6 + 1));
        let of_cache = AttentionArgs { bias: at(9), ..cache() };
        assert_eq!(valid(&of_cache).scores.bias.expect("a bias").shape, [16, 32, 1, 8192]);
        let of_varlen = AttentionArgs { bias: at(9), ..varlen() };
        assert_eq!(valid(&of_varlen).scores.bias.expect("a bias").shape, [3, 4, 5, 7]);
        assert_eq!(valid(&tensors()).scores.bias, None);
    }

    #[test]
    fn masks_with_numbers_or_memory() {
        let of = |mask, mask_length| AttentionArgs { mask, mask_length, ..tensors() };
        assert_eq!(valid(&of(4, 9)).mask, Mask::Prefix(Prefix::All(9)));
        assert_eq!(valid(&of(5, 9)).mask, Mask::Chunked { chunk: 9 });
        let each = AttentionArgs { prefix_lengths: at(9), ..of(4, 0) };
        assert_eq!(valid(&each).mask, Mask::Prefix(Prefix::Each(Index::new(9 << 40, 3))));
        let strides = [0, 5 * 2, 2];
        let tree =
            AttentionArgs { mask_bits: at(9), mask_bits_strides: strides, mask_bits_keys: 5, ..of(6, 0) };
        let bits = MaskBits::new(9 << 40, 3 * 10 + 4 * 2 + 1, [3, 4, 5, 5], strides);
        assert_eq!(valid(&tree).mask, Mask::Bits(bits));
        let all = AttentionArgs { mask_bits_keys: 0, ..tree };
        assert_eq!(valid(&all).mask, Mask::Bits(MaskBits { shape: [3, 4, 5, 7], ..bits }));
        check_refusals(&[
            (of(4, -1), "mask_length: -1"),
            (of(5, -1), "mask_length: -1"),
            (of(6, 0), "mask_bits: NULL"),
            (AttentionArgs { mask_bits_keys: -1, ..tree }, "mask_bits_keys: -1"),
            (of(7, 0), "mask: 7"),
            (AttentionArgs { bias: at(9), bias_dtype: 9, ..tensors() }, "bias_dtype: 9"),
            (AttentionArgs { dtype: 2, k_scale: 2.0, ..tensors() }, "k_scale: 2; tensors have no scales"),
            (AttentionArgs { dtype: 2, v_scales: at(9), ..varlen() }, "v_scales: 0x90000000000; tensors"),
        ]);
    }
}
