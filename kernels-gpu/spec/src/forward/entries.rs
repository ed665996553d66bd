//! The forward family's table: every kernel that the planner chooses among.
use crate::*;

/// Expands `$emit!` with every line of the table, for both element types and each of its masks:
/// `symbol [E = F16, Mask = Full]: Configuration;`, where the configuration speaks of `E` and `Mask`.
///
/// Symbols are `fwd_{dtype}_d{head dim}_{mask}_{queries of a block}x{keys of a stage}`, and what tells them
/// apart.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_forward { ($emit:ident) => { $crate::forward_lines! { $emit, F16 and Bf16:
    // Head dim 32.
    d32 [Full, Causal] 128x64: FwdOverlap<E, Mask, 8, 2, 4, 2, 2>;
    d32 [Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 2, 2, 2>;
    // Head dim 64: long sequences; shorter ones; few queries for the card; very few.
    d64 [Full, Causal] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 4, 4>;
    d64 [Full, Causal, Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 64x64: FwdOverlap<E, Mask, 4, 1, 4, 4, 4>;
    d64 [Full, Causal] 32x128_k2: Fwd<E, Mask, 2, 1, 2, 4, 4, 4, 2>;
    // Head dim 64, more stages: the loads of a whole short sequence are under way at the start.
    d64 [Full] 32x128_k2_s4: Fwd<E, Mask, 2, 1, 2, 4, 4, 4, 4>;
    d64 [Causal] 64x64_s3: Fwd<E, Mask, 4, 2, 1, 4, 4, 4, 3>;
    // Head dim 64, few queries: two or four warps share the keys of 32 rows.
    d64 [Full, Causal] 64x128_k2: Fwd<E, Mask, 4, 2, 2, 4, 4, 4, 2>;
    d64 [Full, Causal] 32x256_k4: Fwd<E, Mask, 2, 2, 4, 4, 4, 4, 2>;
    // Head dim 96.
    d96 [Full] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 6, 0>;
    d96 [Causal] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 6, 2>;
    d96 [Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 6, 0, 2>;
    // Head dim 128: most cards; an SM with room for one block of 64 keys; few queries for the card.
    d128 [Full, Causal] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 8, 0, 2>;
    d128 [Full, Causal] 128x48: Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>;
    d128 [Full, Causal] 32x64_k2: Fwd<E, Mask, 2, 1, 2, 2, 8, 8, 2>;
    d128 [Local] 128x32: Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>;
    // Head dim 128, few queries: likewise.
    d128 [Full, Causal] 64x64_k2: Fwd<E, Mask, 4, 2, 2, 2, 8, 0, 2>;
    d128 [Full, Causal] 32x128_k4: Fwd<E, Mask, 2, 2, 4, 2, 8, 0, 2>;
    // Few queries and many keys: blocks share the keys of 128 queries.
    d64 [Full, Causal] 128x64_split: Split<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d128 [Full, Causal] 128x64_split: Split<Fwd<E, Mask, 8, 2, 1, 4, 8, 0, 2>>;
    // Head dim 192: where shared memory allows; everywhere.
    d192 [Full] 128x64: FwdOverlap<E, Mask, 8, 1, 4, 12, 8>;
    d192 [Causal] 128x64: FwdOverlap<E, Mask, 8, 1, 4, 12, 12>;
    d192 [Full, Causal] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 12, 12, 2>;
    d192 [Local] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2>;
    // Head dim 256: where shared memory allows; everywhere.
    d256 [Full, Causal] 128x32: Fwd<E, Mask, 8, 1, 1, 2, 16, 16, 2>;
    d256 [Full, Causal] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 16, 12, 2>;
    d256 [Local] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>;
    // Head dim 512.
    d512 [Full, Causal] 64x32: FwdWide<E, Mask, 4, 1, 2, 32, 16, 12>;
    d512 [Local] 32x32: FwdWide<E, Mask, 2, 1, 2, 32, 16, 4>;
} } }

/// Expands lines of forward kernels for one element type or two, and for each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_lines {
    ($emit:ident, F16: $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<fwd_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
        )*)* } }
    };
    ($emit:ident, F16 and Bf16:
        $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<fwd_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<fwd_bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

/// Entries of flat lines, and the list of them.
macro_rules! forward_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        $(const _: () = {
            $(type $name = $type;)*
            impl Entry for $config {
                const INFO: EntryInfo = EntryInfo::of::<$config>(
                    Contract::of::<$config>(stringify!($symbol)),
                );
            }
        };)*
        pub(super) const LIST: &[EntryInfo] = &[$({
            $(type $name = $type;)*
            <$config as Entry>::INFO
        }),*];
    };
}
#[cfg(feature = "lineage")]
pub(super) use forward_entries;

for_each_forward!(forward_entries);

/// The kernels that the planner chooses among, in the table's order.
pub const PLANNED: &[EntryInfo] = LIST;

/// Every compiled forward kernel: [`PLANNED`], then the lineage's where this build has them.
pub const ENTRIES: &[EntryInfo] = {
    #[cfg(feature = "lineage")]
    const ALL: &[EntryInfo] = &join::<{ PLANNED.len() + crate::forward::lineage::LIST.len() }>(
        PLANNED,
        crate::forward::lineage::LIST,
    );
    #[cfg(not(feature = "lineage"))]
    const ALL: &[EntryInfo] = PLANNED;
    ALL
};

/// One list behind the other.
#[cfg(feature = "lineage")]
const fn join<const N: usize>(first: &[EntryInfo], second: &[EntryInfo]) -> [EntryInfo; N] {
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}
