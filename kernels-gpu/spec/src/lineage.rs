//! The lineage: every configuration of the predecessor. The planner never selects one. `host/src/lineage.rs`
//! has their names.
use crate::lines::list;
use crate::*;

/// [`for_each_kernel!`] for the lineage's kernels, f16 only, head dim 64 only. The numbers of
/// [`FwdSpecialised`] are `M`, `W`, `N`, `D`, `Q_STEPS` and `STAGES`.
#[cfg(feature = "lineage")]
#[doc(hidden)]
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_lineage { ($emit:ident) => { $crate::lines! { $emit
    /// The lineage's kernels.
    LINEAGE: AttnInfo [F16] fwd {
    d64 [Full, Causal] 64x64_w4: Fwd<E, Mask, 4, 1, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 128x32_w8: Fwd<E, Mask, 8, 1, 1, 2, 4, 4, 2>;
    d64 [Full, Causal] 80x64_w5: Fwd<E, Mask, 5, 1, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 64x64_k2: Fwd<E, Mask, 4, 1, 2, 2, 4, 4, 2>;
    d64 [Full, Causal] 16x64_s2: Fwd<E, Mask, 1, 1, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 32x64_s1: Fwd<E, Mask, 2, 1, 1, 4, 4, 4, 1>;
    d64 [Full, Causal] 48x64_s2: Fwd<E, Mask, 3, 1, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 32x32_s2: Fwd<E, Mask, 2, 1, 1, 2, 4, 4, 2>;
    d64 [Full, Causal] 32x64_s2: Fwd<E, Mask, 2, 1, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 16x64_s2_scalar: Fwd<Scalar<E>, Mask, 1, 1, 1, 4, 4, 0, 2>;
    d64 [Full, Causal] 32x64_s1_scalar: Fwd<Scalar<E>, Mask, 2, 1, 1, 4, 4, 0, 1>;
    d64 [Full, Causal] 48x64_s2_scalar: Fwd<Scalar<E>, Mask, 3, 1, 1, 4, 4, 0, 2>;
    d64 [Full, Causal] 32x32_s2_scalar: Fwd<Scalar<E>, Mask, 2, 1, 1, 2, 4, 0, 2>;
    d64 [Full, Causal] 32x64_s2_scalar: Fwd<Scalar<E>, Mask, 2, 1, 1, 4, 4, 0, 2>;
    d64 [Full, Causal] 64x32_s2: Fwd<E, Mask, 4, 1, 1, 2, 4, 4, 2>;
    d64 [Full, Causal] 64x32_specialised: FwdSpecialised<E, Mask, 4, 1, 2, 4, 4, 2>;
    d64 [Full, Causal] 64x32_persistent: Persistent<Fwd<E, Mask, 4, 1, 1, 2, 4, 4, 2>>;
} } } }

/// [`for_each_kernel!`] for the lineage, in a build that omits the lineage.
#[cfg(not(feature = "lineage"))]
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_lineage {
    ($emit:ident) => {
        $crate::lines! { $emit
            /// The lineage's kernels, empty in this build.
            LINEAGE: AttnInfo
        }
    };
}

for_each_lineage!(list);
