//! The decode family's table.
use crate::decode::Decoding;
use crate::*;

/// A line of the decode family's table as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of queries and output.
    pub dtype: DType,
    /// Element type of the cache.
    pub cache: DType,
    /// Largest head dim, in elements. Smaller ones (multiples of 8) run with their missing columns zero.
    pub head_dim: u32,
    /// Most rows of a block: queries times the heads that share a key head.
    pub rows: u32,
    /// [`MaskKind::Causal`], which does without a mask too, or [`MaskKind::Local`].
    pub mask: MaskKind,
    /// How keys lie in pages.
    pub pages: PageKind,
    /// Warps of a block.
    pub warps: u32,
}

impl DecodeInfo {
    /// The kernel of configuration `K`, compiled as `contract` says.
    const fn of<K: Decoding>(contract: Contract) -> Self {
        DecodeInfo {
            contract,
            dtype: K::DTYPE,
            cache: K::CACHE,
            head_dim: K::HEAD_DIM,
            rows: K::ROWS,
            mask: K::MASK,
            pages: K::PAGES,
            warps: K::WARPS,
        }
    }
}

/// A compiled [`DecodeCombine`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeCombineInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of O.
    pub dtype: DType,
    /// Head dim of the kernels whose splits it merges.
    pub head_dim: u32,
}

impl<E: Element, const D: usize> DecodeCombine<E, D> {
    /// The kernel compiled as `symbol`.
    const fn info(symbol: &'static str) -> DecodeCombineInfo {
        let contract = Contract::of::<Self>(symbol);
        DecodeCombineInfo { contract, dtype: E::DTYPE, head_dim: D as u32 * 16 }
    }
}

/// Expands `$emit!` with every decode kernel, for both element types and each of its masks:
/// `symbol [E = F16, Mask = Causal]: Configuration;`.
///
/// Symbols are `decode_{dtype}_d{head dim}_{mask}_{rows}_{how keys lie in pages}`, and what tells them apart;
/// `decode_{dtype}_{dtype of the cache}_d..` where the cache is of another type.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_decode { ($emit:ident) => { $crate::decode_lines! { $emit:
    // Head dim 64.
    d64 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 4, 8, 3>;
    d64 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 4, 8, 3>;
    d64 [Causal] 8_rows: Decode<E, E, Mask, Rows, 1, 4, 8, 3>;
    d64 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 4, 8, 3>;
    // Head dim 96.
    d96 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 6, 8, 2>;
    d96 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 6, 8, 2>;
    // Head dim 128: where shared memory allows; everywhere.
    d128 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 8, 8, 2>;
    d128 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 8, 8, 2>;
    d128 [Causal] 8_rows: Decode<E, E, Mask, Rows, 1, 8, 8, 2>;
    d128 [Causal] 32_tiles_w4: Decode<E, E, Mask, Tiles, 4, 8, 4, 3>;
    d128 [Causal] 8_tiles_w4: Decode<E, E, Mask, Tiles, 1, 8, 4, 3>;
    d128 [Causal] 16_tiles_w4: Decode<E, E, Mask, Tiles, 2, 8, 4, 3>;
    d128 [Causal, Local] 16_rows_w4: Decode<E, E, Mask, Rows, 2, 8, 4, 3>;
    // Head dim 192.
    d192 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 12, 4, 2>;
    d192 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 12, 4, 2>;
    // Head dim 256.
    d256 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 16, 3, 2>;
    d256 [Causal, Local] 8_rows: Decode<E, E, Mask, Rows, 1, 16, 3, 2>;
    // 16 rows there, and head dim 512, with Q in shared memory: one kernel for every mask, as memory hides
    // what a window costs.
    d256 [Local] 16_rows: Decode<E, E, Mask, Rows, 2, 16, 2, 2>;
    d512 [Local] 8_rows: Decode<E, E, Mask, Rows, 1, 32, 2, 1>;
    // Caches of eight bits: with an instruction that converts; everywhere.
    e4m3_d64 [Causal] 8_tiles_native: Decode<E, Native<E4m3>, Mask, Tiles, 1, 4, 8, 4>;
    e4m3_d64 [Causal, Local] 16_rows_native: Decode<E, Native<E4m3>, Mask, Rows, 2, 4, 8, 4>;
    e4m3_d64 [Causal, Local] 16_rows: Decode<E, E4m3, Mask, Rows, 2, 4, 8, 4>;
    e4m3_d128 [Causal] 8_tiles_native: Decode<E, Native<E4m3>, Mask, Tiles, 1, 8, 8, 3>;
    e4m3_d128 [Causal, Local] 16_rows_native: Decode<E, Native<E4m3>, Mask, Rows, 2, 8, 8, 3>;
    e4m3_d128 [Causal, Local] 16_rows: Decode<E, E4m3, Mask, Rows, 2, 8, 8, 3>;
    e4m3_d256 [Causal] 8_tiles_native: Decode<E, Native<E4m3>, Mask, Tiles, 1, 16, 4, 3>;
    e4m3_d256 [Causal, Local] 8_rows_native: Decode<E, Native<E4m3>, Mask, Rows, 1, 16, 4, 3>;
    e4m3_d256 [Causal, Local] 8_rows: Decode<E, E4m3, Mask, Rows, 1, 16, 4, 3>;
    e4m3_d512 [Local] 8_rows: Decode<E, E4m3, Mask, Rows, 1, 32, 2, 2>;
} } }

/// Expands lines of decode kernels for both element types and each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! decode_lines {
    ($emit:ident: $($d:ident [$($mask:ident),*] $what:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<decode_f16_ $d _ $mask:lower _ $what>] [E = F16, Mask = $mask]: $config;
            [<decode_bf16_ $d _ $mask:lower _ $what>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

macro_rules! decode_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled [`Decode`], in the order in which the planner looks for one.
        pub const DECODES: &[DecodeInfo] = &[$({
            $(type $name = $type;)*
            DecodeInfo::of::<$config>(Contract::of::<$config>(stringify!($symbol)))
        }),*];
    };
}
for_each_decode!(decode_entries);

/// Expands `$emit!` with every [`DecodeCombine`] that is compiled, for both element types.
#[macro_export]
macro_rules! for_each_decode_combine {
    ($emit:ident) => {
        $crate::decode_combine_lines! { $emit:
            d64: DecodeCombine<E, 4>;
            d96: DecodeCombine<E, 6>;
            d128: DecodeCombine<E, 8>;
            d192: DecodeCombine<E, 12>;
            d256: DecodeCombine<E, 16>;
            d512: DecodeCombine<E, 32>;
        }
    };
}

/// Expands lines of the kernels that merge splits, for both element types.
#[doc(hidden)]
#[macro_export]
macro_rules! decode_combine_lines {
    ($emit:ident: $($d:ident: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $(
            [<decode_combine_f16_ $d>] [E = F16]: $config;
            [<decode_combine_bf16_ $d>] [E = Bf16]: $config;
        )* } }
    };
}

macro_rules! decode_combine_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled [`DecodeCombine`].
        pub const DECODE_COMBINES: &[DecodeCombineInfo] = &[$({
            $(type $name = $type;)*
            <$config>::info(stringify!($symbol))
        }),*];
    };
}
for_each_decode_combine!(decode_combine_entries);
