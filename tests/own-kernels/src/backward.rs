//! Backward kernels as lines of the table. Until the planner selects them, they are a caller's kernels.
use kernels_gpu::entry;
use kernels_gpu::prelude::*;
use kernels_gpu::spec::{AttnInfo, BwdDelta, BwdDkDv, BwdDq, DeltaInfo, Line, lines, pastey};

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
    /// -LSE and delta.
    DELTAS: DeltaInfo [F16 Bf16] bwd_delta {
    d32: BwdDelta<E, 2>;
    d64: BwdDelta<E, 4>;
    d96: BwdDelta<E, 6>;
    d128: BwdDelta<E, 8>;
    d192: BwdDelta<E, 12>;
    d256: BwdDelta<E, 16>;
} }
lines! { emit
    /// dK and dV. From head dim 128 on, two or three split groups share the columns.
    DKDVS: AttnInfo [F16] bwd_dkdv {
    d32 [Full, Causal, Local] 128x32: BwdDkDv<E, Mask, 8, 2, 2, 1, 2, 2, 2, 2>;
    d64 [Full, Causal, Local] 128x64: BwdDkDv<E, Mask, 8, 1, 4, 1, 4, 4, 4, 2>;
    d96 [Full, Causal, Local] 64x64: BwdDkDv<E, Mask, 4, 1, 4, 1, 6, 6, 0, 2>;
    d128 [Full, Causal] 64x64: BwdDkDv<E, Mask, 4, 2, 2, 2, 8, 4, 0, 1>;
    d128 [Local] 64x64: BwdDkDv<E, Mask, 4, 1, 2, 2, 8, 4, 0, 1>;
    d192 [Full, Causal, Local] 32x48: BwdDkDv<E, Mask, 2, 1, 1, 3, 12, 4, 0, 1>;
    d256 [Full, Causal, Local] 32x32: BwdDkDv<E, Mask, 2, 1, 1, 2, 16, 8, 0, 1>;
} }
lines! { emit
    /// dQ. Softcap and slopes leave no registers for 32 rows per warp.
    DQS: AttnInfo [F16] bwd_dq {
    d32 [Full, Causal] 128x64: BwdDq<E, Mask, 8, 2, 4, 2, 0, 2>;
    d32 [Local] 128x32: BwdDq<E, Mask, 8, 2, 2, 2, 0, 2>;
    d64 [Full, Causal] 128x64: BwdDq<E, Mask, 8, 2, 4, 4, 0, 2>;
    d64 [Local] 128x64: BwdDq<E, Mask, 8, 1, 4, 4, 0, 2>;
    d96 [Full, Causal] 128x32: BwdDq<E, Mask, 8, 2, 2, 6, 0, 2>;
    d96 [Local] 64x32: BwdDq<E, Mask, 4, 1, 2, 6, 0, 2>;
    d128 [Full, Causal] 128x32: BwdDq<E, Mask, 8, 2, 2, 8, 0, 2>;
    d128 [Local] 128x32: BwdDq<E, Mask, 8, 1, 2, 8, 0, 2>;
    d192 [Full, Causal, Local] 64x16: BwdDq<E, Mask, 4, 1, 1, 12, 0, 1>;
    d256 [Full, Causal, Local] 64x16: BwdDq<E, Mask, 4, 1, 1, 16, 0, 1>;
} }
lines! { emit
    /// One pair of kernels in bf16. The others differ only by the type.
    BF16: AttnInfo
    bwd_dkdv_bf16_d64_causal_128x64: BwdDkDv<Bf16, Causal, 8, 1, 4, 1, 4, 4, 4, 2>;
    bwd_dq_bf16_d64_causal_128x64: BwdDq<Bf16, Causal, 8, 2, 4, 4, 0, 2>;
}
