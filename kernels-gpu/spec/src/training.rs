//! The table of kernels that compute gradients. A build has them only with the feature `training`.
use crate::lines::list;
use crate::*;

/// [`for_each_kernel!`] for the kernels of the backward pass. No portable line has more shared memory than an
/// L4. The numbers of a configuration have this order:
///
/// | configuration | numbers |
/// |---|---|
/// | [`BwdDelta`] | `DV` |
/// | [`BwdDkDv`] | `M`, `W`, `N`, `TEAMS`, `D`, `SHARE`, `HELD`, `STAGES`, `DV`, `SHARE_V` |
/// | [`BwdDq`] | `M`, `W`, `N`, `D`, `HELD`, `STAGES`, `DV` |
/// | [`BwdDbias`] | `M`, `W`, `N`, `D`, `DV` |
/// | [`BwdHopper`] | `M`, `W`, `N`, `D`, `SHARE`, `STAGES`, `Map`, `T`, `C`, `V`, `DEPTH`, `DEPTH_V` |
/// | [`BwdConvertDq`] | `W`, `SHARE`, `D` |
#[cfg(feature = "training")]
#[doc(hidden)]
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_gradient { ($emit:ident) => {
    $crate::lines! { $emit
    /// Every compiled [`BwdDelta`].
    DELTAS: DeltaInfo [F16 Bf16] bwd_delta {
    d32: BwdDelta<E, 2>;
    d64: BwdDelta<E, 4>;
    d96: BwdDelta<E, 6>;
    d128: BwdDelta<E, 8>;
    d192: BwdDelta<E, 12>;
    d256: BwdDelta<E, 16>;
    } }
    $crate::lines! { $emit
    /// Every compiled kernel of gradients.
    GRADIENTS: AttnInfo [F16 Bf16]
    // dK and dV. From head dim 128 on, two or three split groups share the columns.
    bwd_dkdv {
    d32 [Full, Causal, Local] 128x32: BwdDkDv<E, Mask, 8, 2, 2, 1, 2, 2, 2, 2>;
    d64 [Full, Causal, Local] 128x64: BwdDkDv<E, Mask, 8, 1, 4, 1, 4, 4, 4, 2>;
    d96 [Full, Causal, Local] 64x64: BwdDkDv<E, Mask, 4, 1, 4, 1, 6, 6, 0, 2>;
    d128 [Full, Causal] 64x64: BwdDkDv<E, Mask, 4, 2, 2, 2, 8, 4, 0, 1>;
    d128 [Local] 64x64: BwdDkDv<E, Mask, 4, 1, 2, 2, 8, 4, 0, 1>;
    d192x128 [Full, Causal] 64x16: BwdDkDv<E, Mask, 4, 1, 1, 1, 12, 12, 0, 1, 8, 8>;
    d192 [Full, Causal, Local] 32x48: BwdDkDv<E, Mask, 2, 1, 1, 3, 12, 4, 0, 1>;
    d256 [Full, Causal, Local] 32x32: BwdDkDv<E, Mask, 2, 1, 1, 2, 16, 8, 0, 1>;
    // Masks and biases, which have parameters.
    d64 [Prefix, Chunked, Bits] 128x64: With<BwdDkDv<E, Mask, 8, 1, 4, 1, 4, 4, 4, 2>>;
    d128 [Prefix, Chunked, Bits] 64x64: With<BwdDkDv<E, Mask, 4, 1, 2, 2, 8, 4, 0, 1>>;
    d64 [Full, Causal] bias_128x64: With<BwdDkDv<E, Scored<Mask, Bias<E>>, 8, 1, 4, 1, 4, 4, 4, 2>>;
    d64 [Full] bias_f32_128x64: With<BwdDkDv<E, Scored<Mask, Bias<F32>>, 8, 1, 4, 1, 4, 4, 4, 2>>;
    d128 [Full, Causal] bias_64x64: With<BwdDkDv<E, Scored<Mask, Bias<E>>, 4, 1, 2, 2, 8, 4, 0, 1>>;
    d128 [Full] bias_f32_64x64: With<BwdDkDv<E, Scored<Mask, Bias<F32>>, 4, 1, 2, 2, 8, 4, 0, 1>>;
    }
    // dQ. Softcap and slopes leave no registers for 32 rows per warp.
    bwd_dq {
    d32 [Full, Causal] 128x64: BwdDq<E, Mask, 8, 2, 4, 2, 0, 2>;
    d32 [Local] 128x32: BwdDq<E, Mask, 8, 2, 2, 2, 0, 2>;
    d64 [Full, Causal] 128x64: BwdDq<E, Mask, 8, 2, 4, 4, 0, 2>;
    d64 [Local] 128x64: BwdDq<E, Mask, 8, 1, 4, 4, 0, 2>;
    d96 [Full, Causal] 128x32: BwdDq<E, Mask, 8, 2, 2, 6, 0, 2>;
    d96 [Local] 64x32: BwdDq<E, Mask, 4, 1, 2, 6, 0, 2>;
    d128 [Full, Causal] 128x32: BwdDq<E, Mask, 8, 2, 2, 8, 0, 2>;
    d128 [Local] 128x32: BwdDq<E, Mask, 8, 1, 2, 8, 0, 2>;
    d192x128 [Full, Causal] 64x32: BwdDq<E, Mask, 4, 1, 2, 12, 0, 2, 8>;
    d192 [Full, Causal, Local] 64x16: BwdDq<E, Mask, 4, 1, 1, 12, 0, 1>;
    d256 [Full, Causal, Local] 64x16: BwdDq<E, Mask, 4, 1, 1, 16, 0, 1>;
    // Masks and biases, which have parameters.
    d64 [Prefix] 128x64: With<BwdDq<E, Mask, 8, 2, 4, 4, 0, 2>>;
    d64 [Chunked, Bits] 128x64: With<BwdDq<E, Mask, 8, 1, 4, 4, 0, 2>>;
    d128 [Prefix] 128x32: With<BwdDq<E, Mask, 8, 2, 2, 8, 0, 2>>;
    d128 [Chunked, Bits] 128x32: With<BwdDq<E, Mask, 8, 1, 2, 8, 0, 2>>;
    d64 [Full, Causal] bias_128x64: With<BwdDq<E, Scored<Mask, Bias<E>>, 8, 1, 4, 4, 0, 2>>;
    d64 [Full] bias_f32_128x64: With<BwdDq<E, Scored<Mask, Bias<F32>>, 8, 1, 4, 4, 0, 2>>;
    d128 [Full, Causal] bias_128x32: With<BwdDq<E, Scored<Mask, Bias<E>>, 8, 1, 2, 8, 0, 2>>;
    d128 [Full] bias_f32_128x32: With<BwdDq<E, Scored<Mask, Bias<F32>>, 8, 1, 2, 8, 0, 2>>;
    }
    // The gradient of a bias.
    bwd_dbias {
    d64 [Full, Causal] bias_64x64: With<BwdDbias<E, Scored<Mask, Bias<E>>, 4, 1, 4, 4>>;
    d64 [Full] bias_f32_64x64: With<BwdDbias<E, Scored<Mask, Bias<F32>>, 4, 1, 4, 4>>;
    d128 [Full, Causal] bias_64x64: With<BwdDbias<E, Scored<Mask, Bias<E>>, 4, 1, 4, 8>>;
    d128 [Full] bias_f32_64x64: With<BwdDbias<E, Scored<Mask, Bias<F32>>, 4, 1, 4, 8>>;
    }
    // All gradients, on Hopper. Modified scores leave no registers for stages of 128 queries, and at head dim
    // 128 for blocks of 128 keys.
    bwd_hopper {
    d64 [Full, Causal] 128x128: BwdHopper<E, Mask, 8, 2, 8, 4, 4, 2>;
    d64 [Local] 128x64: BwdHopper<E, Mask, 8, 2, 4, 4, 2, 2>;
    d128 [Full, Causal, Windowed] 128x80: BwdHopper<E, Mask, 8, 2, 5, 8, 5, 2>;
    d128 [Local] 64x64: BwdHopper<E, Mask, 4, 2, 4, 8, 4, 2, TensorMap, 1, 4>;
    d96 [Full, Causal, Windowed] 128x80: BwdHopper<E, Mask, 8, 2, 5, 8, 5, 2, TensorMap, 2, 8, 8, 6>;
    d192x128 [Full, Causal] 64x64: BwdHopper<E, Mask, 4, 2, 4, 16, 8, 2, TensorMap, 1, 8, 4, 12, 8>;
    d256 [Full, Causal, Windowed] 64x64: BwdHopper<E, Mask, 4, 2, 4, 16, 8, 2, TensorMap, 1, 8>;
    }
    // The same, on varlen tensors, whose rows of -LSE are whole stages. With three stages, ptxas of CUDA 12.8
    // crashes.
    bwd_hopper_packed {
    d64 [Full, Causal] 128x128: BwdHopper<E, Mask, 8, 2, 8, 4, 4, 2, RaggedMap>;
    d64 [Local] 128x64: BwdHopper<E, Mask, 8, 2, 4, 4, 2, 2, RaggedMap>;
    d128 [Full, Causal] 128x64: BwdHopper<E, Mask, 8, 2, 4, 8, 4, 2, RaggedMap>;
    d128 [Windowed] 128x64: BwdHopper<E, Mask, 8, 2, 4, 8, 4, 2, RaggedMap>;
    d128 [Local] 64x64: BwdHopper<E, Mask, 4, 2, 4, 8, 4, 2, RaggedMap, 1, 4>;
    d96 [Full, Causal, Windowed] 128x64: BwdHopper<E, Mask, 8, 2, 4, 8, 4, 2, RaggedMap, 2, 8, 8, 6>;
    d192x128 [Full, Causal] 64x64: BwdHopper<E, Mask, 4, 2, 4, 16, 8, 2, RaggedMap, 1, 8, 4, 12, 8>;
    d256 [Full, Causal, Windowed] 64x64: BwdHopper<E, Mask, 4, 2, 4, 16, 8, 2, RaggedMap, 1, 8>;
    } }
    $crate::lines! { $emit
    /// Every compiled [`BwdConvertDq`].
    CONVERT_DQS: ConvertDqInfo [F16 Bf16] bwd_convert_dq {
    d64: BwdConvertDq<E, 1, 4, 4>;
    d64_columns: BwdConvertDq<E, 2, 2, 4>;
    d128: BwdConvertDq<E, 2, 4, 8>;
    d128_transposed: BwdConvertDq<E, 2, 5, 8>;
    d256: BwdConvertDq<E, 4, 4, 16>;
    } }
    $crate::lines! { $emit
    /// Every compiled [`BwdDsinks`].
    DSINKS: DsinksInfo
    bwd_dsinks: BwdDsinks;
    }
    $crate::lines! { $emit
    /// Every compiled [`BwdSumHeads`].
    SUM_HEADS: SumHeadsInfo
    bwd_sum_heads_f16: BwdSumHeads<F16>;
    bwd_sum_heads_bf16: BwdSumHeads<Bf16>;
    }
} }

/// [`for_each_kernel!`] for the backward pass, in a build without it.
#[cfg(not(feature = "training"))]
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_gradient {
    ($emit:ident) => {
        $crate::lines! { $emit
            /// Kernels of -LSE and delta: none in this build.
            DELTAS: DeltaInfo
        }
        $crate::lines! { $emit
            /// Kernels of gradients: none in this build.
            GRADIENTS: AttnInfo
        }
        $crate::lines! { $emit
            /// Kernels that round dQ's sums: none in this build.
            CONVERT_DQS: ConvertDqInfo
        }
        $crate::lines! { $emit
            /// Kernels of gradients of sinks: none in this build.
            DSINKS: DsinksInfo
        }
        $crate::lines! { $emit
            /// Kernels of sums of shared heads: none in this build.
            SUM_HEADS: SumHeadsInfo
        }
    };
}

for_each_gradient!(list);
