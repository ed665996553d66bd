//! Hopper's backward kernels as lines of the table. Until the planner selects them, they are a caller's
//! kernels.
use kernels_gpu::entry;
use kernels_gpu::prelude::*;
use kernels_gpu::spec::{
    AttnInfo, BwdConvertDq, BwdDelta, BwdHopper, ConvertDqInfo, DeltaInfo, Line, lines, pastey,
};

macro_rules! emit {
    ($(#[$doc:meta])* $list:ident: $info:ident,
        $($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => { pastey::paste! {
        $(
            mod [<of_ $symbol>] {
                use super::*;
                $(
                    #[allow(dead_code)]
                    type $name = $type;
                )*
                pub type Config = $config;
            }
            entry!($symbol: [<of_ $symbol>]::Config);
        )*
        $(#[$doc])*
        pub const $list: &[$info] =
            &[$($info { contract: $symbol::CONTRACT, ..<[<of_ $symbol>]::Config as Line>::INFO }),*];
    } };
}

lines! { emit
    /// -LSE and delta, and the counters.
    DELTAS: DeltaInfo [F16 Bf16] hopper_delta {
    d64: BwdDelta<E, 4>;
    d128: BwdDelta<E, 8>;
} }
lines! { emit
    /// All gradients. Modified scores leave no registers for stages of 128 queries, and windows spill at head
    /// dim 128.
    GRADIENTS: AttnInfo [F16 Bf16] bwd_hopper {
    d64 [Full, Causal] 128x128: BwdHopper<E, Mask, 8, 2, 8, 4, 4, 2>;
    d64 [Local] 128x64: BwdHopper<E, Mask, 8, 2, 4, 4, 2, 2>;
    d128 [Full, Causal] 128x64: BwdHopper<E, Mask, 8, 2, 4, 8, 4, 2>;
} }
lines! { emit
    /// dQ of the sums.
    CONVERT_DQS: ConvertDqInfo [F16 Bf16] bwd_convert_dq {
    d64: BwdConvertDq<E, 1, 4, 4>;
    d64_columns: BwdConvertDq<E, 2, 2, 4>;
    d128: BwdConvertDq<E, 2, 4, 8>;
} }
