//! The table of kernels beside attention: appends, merges, statistics, and what runs before or behind an
//! attention.
use crate::lines::list;
use crate::*;

/// [`for_each_kernel!`] for these kernels.
#[doc(hidden)]
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_other { ($emit:ident) => {
    $crate::lines! { $emit
    /// Every compiled append kernel. The planner selects the first kernel that runs on the card.
    APPENDS: AppendInfo
    append_copy: AppendCopy;
    append_f16_e4m3_native: Append<F16, Native<E4m3>>;
    append_bf16_e4m3_native: Append<Bf16, Native<E4m3>>;
    append_f16_e4m3: Append<F16, E4m3>;
    append_bf16_e4m3: Append<Bf16, E4m3>;
    append_f16_int8: AppendInt8<F16>;
    append_bf16_int8: AppendInt8<Bf16>;
    append_bf16_e4m3_scaled_native: AppendScaled<Bf16, Native<E4m3>>;
    append_bf16_e4m3_scaled: AppendScaled<Bf16, E4m3>;
    append_rotary_f16: RotaryAppend<F16, AppendCopy>;
    append_rotary_bf16: RotaryAppend<Bf16, AppendCopy>;
    append_rotary_f16_e4m3_native: RotaryAppend<F16, Append<F16, Native<E4m3>>>;
    append_rotary_bf16_e4m3_native: RotaryAppend<Bf16, Append<Bf16, Native<E4m3>>>;
    append_rotary_f16_e4m3: RotaryAppend<F16, Append<F16, E4m3>>;
    append_rotary_bf16_e4m3: RotaryAppend<Bf16, Append<Bf16, E4m3>>;
    append_rotary_f16_int8: RotaryAppend<F16, AppendInt8<F16>>;
    append_rotary_bf16_int8: RotaryAppend<Bf16, AppendInt8<Bf16>>;
    append_rotary_bf16_e4m3_scaled_native: RotaryAppend<Bf16, AppendScaled<Bf16, Native<E4m3>>>;
    append_rotary_bf16_e4m3_scaled: RotaryAppend<Bf16, AppendScaled<Bf16, E4m3>>;
    }
    $crate::lines! { $emit
    /// Every compiled [`Merge`].
    MERGES: MergeInfo
    merge_f16: Merge<F16, F16>;
    merge_bf16: Merge<Bf16, Bf16>;
    merge_f32: Merge<F32, F32>;
    merge_f32_f16: Merge<F32, F16>;
    merge_f32_bf16: Merge<F32, Bf16>;
    }
    $crate::lines! { $emit
    /// Every compiled combine kernel.
    COMBINES: CombineInfo [F16 Bf16]
    combine {
    d64: Combine<E, 4>;
    d128: Combine<E, 8>;
    }
    decode_combine {
    d64: DecodeCombine<E, 4>;
    d96: DecodeCombine<E, 6>;
    d128: DecodeCombine<E, 8>;
    d192: DecodeCombine<E, 12>;
    d256: DecodeCombine<E, 16>;
    d512: DecodeCombine<E, 32>;
    }
    hopper_decode_combine {
    d512: Dependent<DecodeCombine<E, 32>>;
    }
    mixed_combine {
    d64: FewCombine<E, 4>;
    d128: FewCombine<E, 8>;
    d256: FewCombine<E, 16>;
    }
    }
    $crate::lines! { $emit
    /// Every compiled kernel that quantises tensors for an attention kernel.
    QUANTISES: QuantiseInfo [F16 Bf16]
    quantise {
    keys_d64: QuantiseKv<E, 4, 4, 0>;
    keys_d128: QuantiseKv<E, 4, 8, 0>;
    keys48_d128: QuantiseKv<E, 3, 8, 0>;
    d64: QuantiseKv<E, 4, 4>;
    d128: QuantiseKv<E, 4, 8>;
    d256: QuantiseKv<E, 4, 16>;
    fp8_d64: RoundFp8<E, 8, 4>;
    fp8_d128: RoundFp8<E, 8, 8>;
    fp8_d256: RoundFp8<E, 4, 16>;
    }
    }
    $crate::lines! { $emit
    /// Every compiled kernel that runs before or behind the kernels of an attention.
    EXTRAS: ExtraInfo
    used_queries: UsedQueries;
    number_tiles: NumberTiles;
    head_maxima: HeadMaxima;
    lay_e4m3_d64: LayFp8<8, 4>;
    lay_e4m3_d128: LayFp8<8, 8>;
    lay_e4m3_d256: LayFp8<4, 16>;
    lay_e4m3_pages_d64: LayFp8Pages<8, 4>;
    lay_e4m3_pages_d128: LayFp8Pages<8, 8>;
    lay_e4m3_pages_d256: LayFp8Pages<4, 16>;
    lay_int8_pages_d64: LayInt8Pages<4, 4>;
    lay_int8_pages_d128: LayInt8Pages<4, 8>;
    }
    $crate::lines! { $emit
    /// Every compiled kernel of statistics. The one of 576 columns reads latent caches, too.
    STATISTICS: AttnInfo [F16 Bf16]
    stats {
    d64 [Local] 128x64: Statistics<E, Mask, 8, 2, 4, 4, 4, 3>;
    d64 [Local] 128x64_packed: Varlen<Statistics<E, Mask, 8, 2, 4, 4, 4, 3>>;
    d64 [Local] 128x64_paged: Paged<Statistics<E, Mask, 8, 2, 4, 4, 4, 3>>;
    d128 [Local] 128x64: Statistics<E, Mask, 8, 2, 4, 8, 8, 2>;
    d128 [Local] 128x64_packed: Varlen<Statistics<E, Mask, 8, 2, 4, 8, 8, 2>>;
    d128 [Local] 128x64_paged: Paged<Statistics<E, Mask, 8, 2, 4, 8, 8, 2>>;
    d256 [Local] 64x32: Statistics<E, Mask, 4, 1, 2, 16, 16, 2>;
    d256 [Local] 64x32_packed: Varlen<Statistics<E, Mask, 4, 1, 2, 16, 16, 2>>;
    d256 [Local] 64x32_paged: Paged<Statistics<E, Mask, 4, 1, 2, 16, 16, 2>>;
    d576 [Local] 32x16_paged: Paged<Statistics<E, Mask, 2, 1, 1, 36, 18, 2>>;
    }
    }
} }

for_each_other!(list);
