//! The one table of compiled kernels.
use crate::*;

/// Expands `$emit!` with every line of the table: `symbol: Configuration;`, or `symbol: Configuration, spills stores loads "measurement";`
/// where ptxas may spill a few bytes outside of loops.
///
/// Symbols: `fwd_{dtype}_d{head dim}_{mask}_{queries of a block}x{keys of a stage}`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_entry { ($emit:ident) => { $emit! {
    // Head dim 32.
    fwd_f16_d32_full_128x64: FwdOverlap<F16, Full, 8, 2, 4, 2, 2>;
    fwd_bf16_d32_full_128x64: FwdOverlap<Bf16, Full, 8, 2, 4, 2, 2>;
    fwd_f16_d32_causal_128x64: FwdOverlap<F16, Causal, 8, 2, 4, 2, 2>;
    fwd_bf16_d32_causal_128x64: FwdOverlap<Bf16, Causal, 8, 2, 4, 2, 2>;
    fwd_f16_d32_local_128x64: Fwd<F16, Local, 8, 2, 1, 4, 2, 2, 2>;
    fwd_bf16_d32_local_128x64: Fwd<Bf16, Local, 8, 2, 1, 4, 2, 2, 2>;
    // Head dim 64: long sequences; shorter ones; few queries for the card; very few.
    fwd_f16_d64_full_128x32: FwdOverlap<F16, Full, 8, 2, 2, 4, 4>;
    fwd_bf16_d64_full_128x32: FwdOverlap<Bf16, Full, 8, 2, 2, 4, 4>;
    fwd_f16_d64_full_128x64: Fwd<F16, Full, 8, 2, 1, 4, 4, 4, 2>;
    fwd_bf16_d64_full_128x64: Fwd<Bf16, Full, 8, 2, 1, 4, 4, 4, 2>;
    fwd_f16_d64_full_64x64: FwdOverlap<F16, Full, 4, 1, 4, 4, 4>;
    fwd_bf16_d64_full_64x64: FwdOverlap<Bf16, Full, 4, 1, 4, 4, 4>;
    fwd_f16_d64_full_32x128_k2: Fwd<F16, Full, 2, 1, 2, 4, 4, 4, 2>;
    fwd_bf16_d64_full_32x128_k2: Fwd<Bf16, Full, 2, 1, 2, 4, 4, 4, 2>;
    fwd_f16_d64_causal_128x32: FwdOverlap<F16, Causal, 8, 2, 2, 4, 4>;
    fwd_bf16_d64_causal_128x32: FwdOverlap<Bf16, Causal, 8, 2, 2, 4, 4>;
    fwd_f16_d64_causal_128x64: Fwd<F16, Causal, 8, 2, 1, 4, 4, 4, 2>;
    fwd_bf16_d64_causal_128x64: Fwd<Bf16, Causal, 8, 2, 1, 4, 4, 4, 2>;
    fwd_f16_d64_causal_64x64: FwdOverlap<F16, Causal, 4, 1, 4, 4, 4>;
    fwd_bf16_d64_causal_64x64: FwdOverlap<Bf16, Causal, 4, 1, 4, 4, 4>;
    fwd_f16_d64_causal_32x128_k2: Fwd<F16, Causal, 2, 1, 2, 4, 4, 4, 2>;
    fwd_bf16_d64_causal_32x128_k2: Fwd<Bf16, Causal, 2, 1, 2, 4, 4, 4, 2>;
    fwd_f16_d64_local_128x64: Fwd<F16, Local, 8, 2, 1, 4, 4, 4, 2>;
    fwd_bf16_d64_local_128x64: Fwd<Bf16, Local, 8, 2, 1, 4, 4, 4, 2>;
    // Head dim 64, more stages: the loads of a whole short sequence are under way at the start.
    fwd_f16_d64_full_32x128_k2_s4: Fwd<F16, Full, 2, 1, 2, 4, 4, 4, 4>;
    fwd_bf16_d64_full_32x128_k2_s4: Fwd<Bf16, Full, 2, 1, 2, 4, 4, 4, 4>;
    fwd_f16_d64_causal_64x64_s3: Fwd<F16, Causal, 4, 2, 1, 4, 4, 4, 3>;
    fwd_bf16_d64_causal_64x64_s3: Fwd<Bf16, Causal, 4, 2, 1, 4, 4, 4, 3>;
    // Head dim 64, few queries: two or four warps share the keys of 32 rows.
    fwd_f16_d64_full_64x128_k2: Fwd<F16, Full, 4, 2, 2, 4, 4, 4, 2>;
    fwd_bf16_d64_full_64x128_k2: Fwd<Bf16, Full, 4, 2, 2, 4, 4, 4, 2>;
    fwd_f16_d64_full_32x256_k4: Fwd<F16, Full, 2, 2, 4, 4, 4, 4, 2>;
    fwd_bf16_d64_full_32x256_k4: Fwd<Bf16, Full, 2, 2, 4, 4, 4, 4, 2>;
    fwd_f16_d64_causal_64x128_k2: Fwd<F16, Causal, 4, 2, 2, 4, 4, 4, 2>;
    fwd_bf16_d64_causal_64x128_k2: Fwd<Bf16, Causal, 4, 2, 2, 4, 4, 4, 2>;
    fwd_f16_d64_causal_32x256_k4: Fwd<F16, Causal, 2, 2, 4, 4, 4, 4, 2>;
    fwd_bf16_d64_causal_32x256_k4: Fwd<Bf16, Causal, 2, 2, 4, 4, 4, 4, 2>;
    // Head dim 96.
    fwd_f16_d96_full_128x32: FwdOverlap<F16, Full, 8, 2, 2, 6, 0>;
    fwd_bf16_d96_full_128x32: FwdOverlap<Bf16, Full, 8, 2, 2, 6, 0>;
    fwd_f16_d96_causal_128x32: FwdOverlap<F16, Causal, 8, 2, 2, 6, 2>;
    fwd_bf16_d96_causal_128x32: FwdOverlap<Bf16, Causal, 8, 2, 2, 6, 2>;
    fwd_f16_d96_local_128x64: Fwd<F16, Local, 8, 2, 1, 4, 6, 0, 2>;
    fwd_bf16_d96_local_128x64: Fwd<Bf16, Local, 8, 2, 1, 4, 6, 0, 2>;
    // Head dim 128: most cards; an SM with room for one block of 64 keys; few queries for the card.
    fwd_f16_d128_full_128x64: Fwd<F16, Full, 8, 2, 1, 4, 8, 0, 2>;
    fwd_bf16_d128_full_128x64: Fwd<Bf16, Full, 8, 2, 1, 4, 8, 0, 2>;
    fwd_f16_d128_full_128x48: Fwd<F16, Full, 8, 2, 1, 3, 8, 0, 2>;
    fwd_bf16_d128_full_128x48: Fwd<Bf16, Full, 8, 2, 1, 3, 8, 0, 2>;
    fwd_f16_d128_full_32x64_k2: Fwd<F16, Full, 2, 1, 2, 2, 8, 8, 2>;
    fwd_bf16_d128_full_32x64_k2: Fwd<Bf16, Full, 2, 1, 2, 2, 8, 8, 2>;
    fwd_f16_d128_causal_128x64: Fwd<F16, Causal, 8, 2, 1, 4, 8, 0, 2>, spills 4 4 "4 bytes once a block, sm_80 only, where the planner takes 128x48 for large launches; elsewhere 1 to 3 % faster than 128x48 (H200 sweep)";
    fwd_bf16_d128_causal_128x64: Fwd<Bf16, Causal, 8, 2, 1, 4, 8, 0, 2>, spills 4 4 "4 bytes once a block, sm_80 only, where the planner takes 128x48 for large launches; elsewhere 1 to 3 % faster than 128x48 (H200 sweep)";
    fwd_f16_d128_causal_128x48: Fwd<F16, Causal, 8, 2, 1, 3, 8, 0, 2>;
    fwd_bf16_d128_causal_128x48: Fwd<Bf16, Causal, 8, 2, 1, 3, 8, 0, 2>;
    fwd_f16_d128_causal_32x64_k2: Fwd<F16, Causal, 2, 1, 2, 2, 8, 8, 2>;
    fwd_bf16_d128_causal_32x64_k2: Fwd<Bf16, Causal, 2, 1, 2, 2, 8, 8, 2>;
    fwd_f16_d128_local_128x32: Fwd<F16, Local, 8, 2, 1, 2, 8, 0, 2>;
    fwd_bf16_d128_local_128x32: Fwd<Bf16, Local, 8, 2, 1, 2, 8, 0, 2>;
    // Head dim 128, few queries: likewise.
    fwd_f16_d128_full_64x64_k2: Fwd<F16, Full, 4, 2, 2, 2, 8, 0, 2>;
    fwd_bf16_d128_full_64x64_k2: Fwd<Bf16, Full, 4, 2, 2, 2, 8, 0, 2>;
    fwd_f16_d128_full_32x128_k4: Fwd<F16, Full, 2, 2, 4, 2, 8, 0, 2>;
    fwd_bf16_d128_full_32x128_k4: Fwd<Bf16, Full, 2, 2, 4, 2, 8, 0, 2>;
    fwd_f16_d128_causal_64x64_k2: Fwd<F16, Causal, 4, 2, 2, 2, 8, 0, 2>;
    fwd_bf16_d128_causal_64x64_k2: Fwd<Bf16, Causal, 4, 2, 2, 2, 8, 0, 2>;
    fwd_f16_d128_causal_32x128_k4: Fwd<F16, Causal, 2, 2, 4, 2, 8, 0, 2>;
    fwd_bf16_d128_causal_32x128_k4: Fwd<Bf16, Causal, 2, 2, 4, 2, 8, 0, 2>;
    // Few queries and many keys: blocks share the keys of 128 queries.
    fwd_f16_d64_full_128x64_split: Split<Fwd<F16, Full, 8, 2, 1, 4, 4, 4, 2>>;
    fwd_bf16_d64_full_128x64_split: Split<Fwd<Bf16, Full, 8, 2, 1, 4, 4, 4, 2>>;
    fwd_f16_d64_causal_128x64_split: Split<Fwd<F16, Causal, 8, 2, 1, 4, 4, 4, 2>>;
    fwd_bf16_d64_causal_128x64_split: Split<Fwd<Bf16, Causal, 8, 2, 1, 4, 4, 4, 2>>;
    fwd_f16_d128_full_128x64_split: Split<Fwd<F16, Full, 8, 2, 1, 4, 8, 0, 2>>;
    fwd_bf16_d128_full_128x64_split: Split<Fwd<Bf16, Full, 8, 2, 1, 4, 8, 0, 2>>;
    fwd_f16_d128_causal_128x64_split: Split<Fwd<F16, Causal, 8, 2, 1, 4, 8, 0, 2>>;
    fwd_bf16_d128_causal_128x64_split: Split<Fwd<Bf16, Causal, 8, 2, 1, 4, 8, 0, 2>>;
    // Head dim 192: where shared memory allows; everywhere.
    fwd_f16_d192_full_128x64: FwdOverlap<F16, Full, 8, 1, 4, 12, 8>;
    fwd_bf16_d192_full_128x64: FwdOverlap<Bf16, Full, 8, 1, 4, 12, 8>;
    fwd_f16_d192_full_64x32: Fwd<F16, Full, 4, 1, 1, 2, 12, 12, 2>;
    fwd_bf16_d192_full_64x32: Fwd<Bf16, Full, 4, 1, 1, 2, 12, 12, 2>;
    fwd_f16_d192_causal_128x64: FwdOverlap<F16, Causal, 8, 1, 4, 12, 12>;
    fwd_bf16_d192_causal_128x64: FwdOverlap<Bf16, Causal, 8, 1, 4, 12, 12>;
    fwd_f16_d192_causal_64x32: Fwd<F16, Causal, 4, 1, 1, 2, 12, 12, 2>;
    fwd_bf16_d192_causal_64x32: Fwd<Bf16, Causal, 4, 1, 1, 2, 12, 12, 2>;
    fwd_f16_d192_local_64x32: Fwd<F16, Local, 4, 1, 1, 2, 12, 4, 2>;
    fwd_bf16_d192_local_64x32: Fwd<Bf16, Local, 4, 1, 1, 2, 12, 4, 2>;
    // Head dim 256: where shared memory allows; everywhere.
    fwd_f16_d256_full_128x32: Fwd<F16, Full, 8, 1, 1, 2, 16, 16, 2>;
    fwd_bf16_d256_full_128x32: Fwd<Bf16, Full, 8, 1, 1, 2, 16, 16, 2>;
    fwd_f16_d256_full_64x32: Fwd<F16, Full, 4, 1, 1, 2, 16, 12, 2>;
    fwd_bf16_d256_full_64x32: Fwd<Bf16, Full, 4, 1, 1, 2, 16, 12, 2>;
    fwd_f16_d256_causal_128x32: Fwd<F16, Causal, 8, 1, 1, 2, 16, 16, 2>;
    fwd_bf16_d256_causal_128x32: Fwd<Bf16, Causal, 8, 1, 1, 2, 16, 16, 2>;
    fwd_f16_d256_causal_64x32: Fwd<F16, Causal, 4, 1, 1, 2, 16, 12, 2>;
    fwd_bf16_d256_causal_64x32: Fwd<Bf16, Causal, 4, 1, 1, 2, 16, 12, 2>;
    fwd_f16_d256_local_64x32: Fwd<F16, Local, 4, 1, 1, 2, 16, 4, 2>;
    fwd_bf16_d256_local_64x32: Fwd<Bf16, Local, 4, 1, 1, 2, 16, 4, 2>;
    // The lineage: every configuration that the predecessor wanted (f16, head dim 64); host/src/lineage.rs has its names.
    fwd_f16_d64_full_64x64_w4: Fwd<F16, Full, 4, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_full_128x32_w8: Fwd<F16, Full, 8, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_full_64x64_k2: Fwd<F16, Full, 4, 1, 2, 2, 4, 4, 2>;
    fwd_f16_d64_full_16x64_s2: Fwd<F16, Full, 1, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_full_32x64_s1: Fwd<F16, Full, 2, 1, 1, 4, 4, 4, 1>;
    fwd_f16_d64_full_48x64_s2: Fwd<F16, Full, 3, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_full_32x32_s2: Fwd<F16, Full, 2, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_full_32x64_s2: Fwd<F16, Full, 2, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_full_16x64_s2_scalar: Fwd<Scalar<F16>, Full, 1, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_full_32x64_s1_scalar: Fwd<Scalar<F16>, Full, 2, 1, 1, 4, 4, 0, 1>;
    fwd_f16_d64_full_48x64_s2_scalar: Fwd<Scalar<F16>, Full, 3, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_full_32x32_s2_scalar: Fwd<Scalar<F16>, Full, 2, 1, 1, 2, 4, 0, 2>;
    fwd_f16_d64_full_32x64_s2_scalar: Fwd<Scalar<F16>, Full, 2, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_full_64x32_s2: Fwd<F16, Full, 4, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_full_64x32_specialised: FwdSpecialised<F16, Full, 4, 1, 2, 4, 4, 2>;
    fwd_f16_d64_full_64x32_persistent: Persistent<Fwd<F16, Full, 4, 1, 1, 2, 4, 4, 2>>;
    fwd_f16_d64_causal_64x64_w4: Fwd<F16, Causal, 4, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_causal_128x32_w8: Fwd<F16, Causal, 8, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_causal_64x64_k2: Fwd<F16, Causal, 4, 1, 2, 2, 4, 4, 2>;
    fwd_f16_d64_causal_16x64_s2: Fwd<F16, Causal, 1, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_causal_32x64_s1: Fwd<F16, Causal, 2, 1, 1, 4, 4, 4, 1>;
    fwd_f16_d64_causal_48x64_s2: Fwd<F16, Causal, 3, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_causal_32x32_s2: Fwd<F16, Causal, 2, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_causal_32x64_s2: Fwd<F16, Causal, 2, 1, 1, 4, 4, 4, 2>;
    fwd_f16_d64_causal_16x64_s2_scalar: Fwd<Scalar<F16>, Causal, 1, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_causal_32x64_s1_scalar: Fwd<Scalar<F16>, Causal, 2, 1, 1, 4, 4, 0, 1>;
    fwd_f16_d64_causal_48x64_s2_scalar: Fwd<Scalar<F16>, Causal, 3, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_causal_32x32_s2_scalar: Fwd<Scalar<F16>, Causal, 2, 1, 1, 2, 4, 0, 2>;
    fwd_f16_d64_causal_32x64_s2_scalar: Fwd<Scalar<F16>, Causal, 2, 1, 1, 4, 4, 0, 2>;
    fwd_f16_d64_causal_64x32_s2: Fwd<F16, Causal, 4, 1, 1, 2, 4, 4, 2>;
    fwd_f16_d64_causal_64x32_specialised: FwdSpecialised<F16, Causal, 4, 1, 2, 4, 4, 2>;
    fwd_f16_d64_causal_64x32_persistent: Persistent<Fwd<F16, Causal, 4, 1, 1, 2, 4, 4, 2>>;
} } }

macro_rules! allowance {
    () => {
        None
    };
    ($stores:literal $loads:literal $reason:literal) => {
        Some(SpillAllowance { stores: $stores, loads: $loads, reason: $reason })
    };
}

macro_rules! table {
    ($($symbol:ident: $kernel:ty $(, spills $stores:literal $loads:literal $reason:literal)?;)*) => {
        $(impl Entry for $kernel {
            const INFO: EntryInfo = EntryInfo {
                symbol: stringify!($symbol),
                dtype: <$kernel as Forward>::DTYPE,
                head_dim: <$kernel as Forward>::HEAD_DIM,
                mask: <$kernel as Forward>::MASK,
                schedule: <$kernel as Forward>::SCHEDULE,
                path: <$kernel as Forward>::PATH,
                grid: <$kernel as Forward>::GRID,
                tile_m: <$kernel as Forward>::TILE_M,
                tile_n: <$kernel as Forward>::TILE_N,
                stages: <$kernel as Forward>::STAGES,
                threads: <$kernel as Kernel>::THREADS,
                smem_bytes: <$kernel as Kernel>::SMEM_BYTES as u32,
                min_blocks_per_sm: <$kernel as Kernel>::BLOCKS_PER_SM,
                spills: allowance!($($stores $loads $reason)?),
            };
        })*
        /// Every compiled kernel, in the table's order.
        pub const ENTRIES: &[EntryInfo] = &[$(<$kernel as Entry>::INFO),*];
    };
}
for_each_entry!(table);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{collections::HashSet, format};

    #[test]
    fn symbols_are_distinct_and_say_what_they_are() {
        let distinct: HashSet<_> = ENTRIES.iter().map(|e| e.symbol).collect();
        assert_eq!(distinct.len(), ENTRIES.len());
        for e in ENTRIES {
            let name = format!("fwd_{}_d{}_{}_{}x{}", e.dtype.name(), e.head_dim, e.mask.name(), e.tile_m, e.tile_n);
            assert!(e.symbol.starts_with(&name), "{} should start with {name}", e.symbol);
        }
    }

    #[test]
    fn every_head_dim_mask_and_type_has_an_entry_that_an_l4_can_hold() {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in [32, 64, 96, 128, 192, 256] {
                for mask in [MaskKind::Full, MaskKind::Causal, MaskKind::Local] {
                    let fits = ENTRIES
                        .iter()
                        .any(|e| (e.dtype, e.head_dim, e.mask) == (dtype, head_dim, mask) && e.smem_bytes <= 99 * 1024);
                    assert!(fits, "{dtype:?} {head_dim} {mask:?}");
                }
            }
        }
    }
}
