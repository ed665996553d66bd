//! The one table: every compiled kernel. `lineage.rs` has the kernels that the planner never selects, and
//! `lines.rs` the names of the numbers.
use crate::lines::list;
use crate::*;

/// Expands `$emit!` with the lines of each list: `LIST: Info, symbol [E = Type, ..]: Configuration; ..`. A
/// configuration may use the names in brackets.
///
/// An attention line is `head dim [masks] tile: Configuration`. The line expands to both dtypes and to each
/// of the masks. Braces hold the lines of one family, and the word before them begins their symbols. Symbols
/// are `{family}_{dtype}_d{head dim}_{mask}_{rows per block}x{keys per stage}`, plus a suffix if symbols
/// would otherwise be equal. `d192x128` means K of 192 columns with V of 128. Symbols of decode kernels end
/// in rows, page kind and suffix. These symbols contain the KV cache's dtype if it differs from Q's.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_kernel { ($emit:ident) => {
    $crate::lines! { $emit
    /// Every compiled forward attention kernel but the lineage, family by family. Of equally good kernels,
    /// the planner takes the first.
    ATTENTION: AttnInfo [F16 Bf16]
    // Portable kernels for dense tensors.
    fwd {
    d32 [Full, Causal] 128x64: FwdOverlap<E, Mask, 8, 2, 4, 2, 2>;
    d32 [Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 2, 2, 2>;
    // Head dim 64: long sequences; shorter sequences; few queries for the card; very few queries.
    d64 [Full, Causal] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 4, 4>;
    d64 [Full, Causal, Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>;
    d64 [Full, Causal] 64x64: FwdOverlap<E, Mask, 4, 1, 4, 4, 4>;
    d64 [Full, Causal] 32x128_k2: Fwd<E, Mask, 2, 1, 2, 4, 4, 4, 2>;
    // Head dim 64 with more stages: the block copies a whole short sequence at its start.
    d64 [Full] 32x128_k2_s4: Fwd<E, Mask, 2, 1, 2, 4, 4, 4, 4>;
    d64 [Causal] 64x64_s3: Fwd<E, Mask, 4, 2, 1, 4, 4, 4, 3>;
    // Head dim 64, few queries: two or four warps share the keys of 32 rows.
    d64 [Full, Causal] 64x128_k2: Fwd<E, Mask, 4, 2, 2, 4, 4, 4, 2>;
    d64 [Full, Causal] 32x256_k4: Fwd<E, Mask, 2, 2, 4, 4, 4, 4, 2>;
    d96 [Full] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 6, 0>;
    d96 [Causal] 128x32: FwdOverlap<E, Mask, 8, 2, 2, 6, 2>;
    d96 [Local] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 6, 0, 2>;
    // Head dim 128: for most cards; for SMs with room for one block of 64 keys; for few queries.
    d128 [Full, Causal] 128x64: Fwd<E, Mask, 8, 2, 1, 4, 8, 0, 2>;
    d128 [Full, Causal] 128x48: Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>;
    d128 [Full, Causal] 32x64_k2: Fwd<E, Mask, 2, 1, 2, 2, 8, 8, 2>;
    d128 [Local] 128x32: Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>;
    // Head dim 128, few queries: two or four warps share the keys.
    d128 [Full, Causal] 64x64_k2: Fwd<E, Mask, 4, 2, 2, 2, 8, 0, 2>;
    d128 [Full, Causal] 32x128_k4: Fwd<E, Mask, 2, 2, 4, 2, 8, 0, 2>;
    // Few queries and many keys: several blocks share the keys of 128 queries.
    d64 [Full, Causal, Local] 128x64_split: Split<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d128 [Full, Causal] 128x64_split: Split<Fwd<E, Mask, 8, 2, 1, 4, 8, 0, 2>>;
    d128 [Local] 128x32_split: Split<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    // Head dim 192: first for cards with enough shared memory, then for all cards.
    d192 [Full] 128x64: FwdOverlap<E, Mask, 8, 1, 4, 12, 8>;
    d192 [Causal] 128x64: FwdOverlap<E, Mask, 8, 1, 4, 12, 12>;
    d192 [Full, Causal] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 12, 12, 2>;
    d192 [Local] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2>;
    // Values of 128 columns (MLA after up-projection): for cards with enough shared memory; for all cards.
    d192x128 [Full, Causal] 128x48: Fwd<E, Mask, 8, 2, 1, 3, 12, 0, 2, 8>;
    d192x128 [Full, Causal] 64x48: Fwd<E, Mask, 4, 1, 1, 3, 12, 12, 2, 8>;
    d192x128 [Local] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2, 8>;
    // Head dim 256: first for cards with enough shared memory, then for all cards.
    d256 [Full, Causal] 128x32: Fwd<E, Mask, 8, 1, 1, 2, 16, 16, 2>;
    d256 [Full, Causal] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 16, 12, 2>;
    d256 [Local] 64x32: Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>;
    d512 [Full, Causal] 64x32: FwdWide<E, Mask, 4, 1, 2, 32, 16, 12>;
    d512 [Local] 32x32: FwdWide<E, Mask, 2, 1, 2, 32, 16, 4>;
    }
    // Portable `Varlen` kernels. Common head dims have two tilings, and others have one: long sequences want
    // tiles of many queries, and short sequences would leave such tiles half empty. At head dim 128, a stage
    // has the most keys with which an A100 runs two blocks per SM. 64 keys are 1 to 3 % faster where two
    // blocks fit with them too, but they take all registers.
    fwd {
    d32 [Full, Causal] 128x64_packed: Varlen<FwdOverlap<E, Mask, 8, 2, 4, 2, 2>>;
    d32 [Local] 128x64_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 4, 2, 2, 2>>;
    d64 [Full, Causal] 128x32_packed: Varlen<FwdOverlap<E, Mask, 8, 2, 2, 4, 4>>;
    d64 [Full, Causal] 64x64_packed: Varlen<FwdOverlap<E, Mask, 4, 1, 4, 4, 4>>;
    d64 [Local] 128x64_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d96 [Full] 128x32_packed: Varlen<FwdOverlap<E, Mask, 8, 2, 2, 6, 0>>;
    d96 [Causal] 128x32_packed: Varlen<FwdOverlap<E, Mask, 8, 2, 2, 6, 2>>;
    d96 [Local] 128x32_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 2, 6, 0, 2>>;
    d128 [Full, Causal] 128x48_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>;
    d128 [Full, Causal] 64x64_k2_packed: Varlen<Fwd<E, Mask, 4, 2, 2, 2, 8, 0, 2>>;
    d128 [Local] 128x32_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    d192 [Full, Causal] 64x32_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 2, 12, 12, 2>>;
    d192 [Local] 64x32_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2>>;
    d192x128 [Full, Causal] 128x48_packed: Varlen<Fwd<E, Mask, 8, 2, 1, 3, 12, 0, 2, 8>>;
    d192x128 [Full, Causal] 64x48_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 3, 12, 12, 2, 8>>;
    d192x128 [Local] 64x32_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2, 8>>;
    d256 [Full, Causal] 128x32_packed: Varlen<Fwd<E, Mask, 8, 1, 1, 2, 16, 16, 2>>;
    d256 [Full, Causal] 64x32_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 2, 16, 12, 2>>;
    d256 [Local] 64x32_packed: Varlen<Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>>;
    d512 [Full, Causal] 64x32_packed: Varlen<FwdWide<E, Mask, 4, 1, 2, 32, 16, 12>>;
    d512 [Local] 32x32_packed: Varlen<FwdWide<E, Mask, 2, 1, 2, 32, 16, 4>>;
    }
    // `Decode` kernels. Few stages (`_s1`, `_s2`) are for short work.
    decode {
    d64 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 4, 8, 3>;
    d64 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 4, 8, 3>;
    d64 [Causal] 8_rows: Decode<E, E, Mask, Rows, 1, 4, 8, 3>;
    d64 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 4, 8, 3>;
    d64 [Local] 8_rows_w4_s2: Decode<E, E, Mask, Rows, 1, 4, 4, 2>;
    d96 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 6, 8, 2>;
    d96 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 6, 8, 2>;
    // Head dim 128: first for cards with enough shared memory, then for all cards.
    d128 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 8, 8, 2>;
    d128 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 8, 8, 2>;
    d128 [Causal] 8_rows: Decode<E, E, Mask, Rows, 1, 8, 8, 2>;
    d128 [Causal] 32_tiles_w4: Decode<E, E, Mask, Tiles, 4, 8, 4, 3>;
    d128 [Causal] 8_tiles_w4: Decode<E, E, Mask, Tiles, 1, 8, 4, 3>;
    d128 [Causal] 16_tiles_w4: Decode<E, E, Mask, Tiles, 2, 8, 4, 3>;
    d128 [Causal, Local] 16_rows_w4: Decode<E, E, Mask, Rows, 2, 8, 4, 3>;
    d128 [Local] 8_rows_w4_s1: Decode<E, E, Mask, Rows, 1, 8, 4, 1>;
    d192 [Causal] 16_tiles: Decode<E, E, Mask, Tiles, 2, 12, 4, 2>;
    d192 [Causal, Local] 16_rows: Decode<E, E, Mask, Rows, 2, 12, 4, 2>;
    d256 [Causal] 8_tiles: Decode<E, E, Mask, Tiles, 1, 16, 3, 2>;
    d256 [Causal, Local] 8_rows: Decode<E, E, Mask, Rows, 1, 16, 3, 2>;
    // Head dim 256 with 16 rows, and head dim 512: Q is in shared memory. One kernel serves every mask.
    d256 [Local] 16_rows: Decode<E, E, Mask, Rows, 2, 16, 2, 2>;
    d512 [Local] 8_rows: Decode<E, E, Mask, Rows, 1, 32, 2, 1>;
    // Caches of eight bits: first for cards with a conversion instruction, then for all cards.
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
    // Caches of integers with a scale for each row. One kernel serves every mask.
    int8_d64 [Local] 8_rows: Decode<E, Int8, Mask, Rows, 1, 4, 8, 4>;
    int8_d64 [Local] 16_rows: Decode<E, Int8, Mask, Rows, 2, 4, 8, 4>;
    int8_d128 [Local] 8_rows: Decode<E, Int8, Mask, Rows, 1, 8, 6, 3>;
    int8_d128 [Local] 16_rows: Decode<E, Int8, Mask, Rows, 2, 8, 8, 3>;
    int8_d256 [Local] 8_rows: Decode<E, Int8, Mask, Rows, 1, 16, 4, 3>;
    // Trees of drafts. Each row of a block pairs one draft token with one of the key head's query heads.
    d64 [Bits] 16_tiles: With<Decode<E, E, Mask, Tiles, 2, 4, 8, 3>>;
    d128 [Bits] 16_tiles_w4: With<Decode<E, E, Mask, Tiles, 2, 8, 4, 3>>;
    d256 [Bits] 16_rows: With<Decode<E, E, Mask, Rows, 2, 16, 2, 2>>;
    e4m3_d128 [Bits] 16_rows_native: With<Decode<E, Native<E4m3>, Mask, Rows, 2, 8, 8, 3>>;
    e4m3_d256 [Bits] 8_rows: With<Decode<E, E4m3, Mask, Rows, 1, 16, 4, 3>>;
    int8_d128 [Bits] 16_rows: With<Decode<E, Int8, Mask, Rows, 2, 8, 8, 3>>;
    int8_d256 [Bits] 8_rows: With<Decode<E, Int8, Mask, Rows, 1, 16, 4, 3>>; }
    // `Mla` kernels: K has 576 columns, and the first 512 of them are V. With 16 or 32 rows: first for all
    // cards, then for cards with room for four stages. With 64 rows, Q is in shared memory: where it fits.
    mla {
    d576 [Causal] 16x32: Mla<E, Mask, 2, 1, 2, 36, 32, 8, 4, 2, true>;
    d576 [Causal] 16x32_s4: Mla<E, Mask, 2, 1, 2, 36, 32, 8, 4, 4, true>;
    d576 [Causal] 32x32: Mla<E, Mask, 4, 1, 2, 36, 32, 4, 8, 2, true>;
    d576 [Causal] 32x32_s4: Mla<E, Mask, 4, 1, 2, 36, 32, 4, 8, 4, true>;
    d576 [Causal] 64x32_s4: Mla<E, Mask, 8, 2, 2, 36, 32, 4, 8, 4, false>;
    // Latents of e4m3: cards with a conversion instruction; all cards.
    e4m3_d576 [Causal] 16x32_native: MlaDequant<E, Native<E4m3>, Mask, 2, 1, 2, 36, 40, 32, 8, 4, true>;
    e4m3_d576 [Causal] 16x32: MlaDequant<E, E4m3, Mask, 2, 1, 2, 36, 40, 32, 8, 4, true>;
    e4m3_d576 [Causal] 32x32_native: MlaDequant<E, Native<E4m3>, Mask, 4, 1, 2, 36, 40, 32, 4, 8, true>;
    e4m3_d576 [Causal] 32x32: MlaDequant<E, E4m3, Mask, 4, 1, 2, 36, 40, 32, 4, 8, true>; }
    // Each query has a list of keys.
    sparse_mla {
    d576 [Full] 16x32: Sparse<Mla<E, Mask, 2, 1, 2, 36, 32, 8, 4, 2, true>>;
    d576 [Full] 32x32: Sparse<Mla<E, Mask, 4, 1, 2, 36, 32, 4, 8, 2, true>>;
    d576 [Full] 64x32_s4: Sparse<Mla<E, Mask, 8, 2, 2, 36, 32, 4, 8, 4, false>>;
    e4m3_d576 [Full] 16x32_native: Sparse<MlaDequant<E, Native<E4m3>, Mask, 2, 1, 2, 36, 40, 32, 8, 4, true>>;
    e4m3_d576 [Full] 16x32: Sparse<MlaDequant<E, E4m3, Mask, 2, 1, 2, 36, 40, 32, 8, 4, true>>;
    e4m3_d576 [Full] 32x32_native: Sparse<MlaDequant<E, Native<E4m3>, Mask, 4, 1, 2, 36, 40, 32, 4, 8, true>>;
    e4m3_d576 [Full] 32x32: Sparse<MlaDequant<E, E4m3, Mask, 4, 1, 2, 36, 40, 32, 4, 8, true>>; }
    hopper_mla {
    d576 [Causal] 64x64: MlaHopper<E, Mask>;
    e4m3_d576 [Causal] 64x64: MlaHopperDequant<E, Native<E4m3>, Mask>; }
    hopper_sparse_mla {
    d576 [Full] 64x64: Sparse<MlaHopper<E, Mask>>;
    e4m3_d576 [Full] 64x64: Sparse<MlaHopperDequant<E, Native<E4m3>, Mask>>; }
    // Portable `Paged` kernels. Each mask and head dim has one tiling, and other head dims run on the kernel
    // of the next larger one, because every program contains all kernels. Causal kernels also run full masks.
    paged {
    d64 [Causal, Local] 128x64: Paged<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d128 [Causal] 128x48: Paged<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>;
    d128 [Local] 128x32: Paged<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    d192x128 [Causal] 64x48: Paged<Fwd<E, Mask, 4, 1, 1, 3, 12, 12, 2, 8>>;
    d192x128 [Local] 64x32: Paged<Fwd<E, Mask, 4, 1, 1, 2, 12, 4, 2, 8>>;
    d256 [Causal, Local] 64x32: Paged<Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>>;
    d512 [Causal] 64x32: Paged<FwdWide<E, Mask, 4, 1, 2, 32, 16, 12>>;
    d512 [Local] 32x32: Paged<FwdWide<E, Mask, 2, 1, 2, 32, 16, 4>>;
    // Caches of eight bits: cards with a conversion instruction; all cards, with one kernel for all masks.
    e4m3_d64 [Causal, Local] 128x64_native: Paged<FwdDequant<E, Native<E4m3>, Mask, 8, 2, 4, 4, 4>>;
    e4m3_d64 [Local] 128x64: Paged<FwdDequant<E, E4m3, Mask, 8, 2, 4, 4, 4>>;
    e4m3_d128 [Causal, Local] 128x32_native: Paged<FwdDequant<E, Native<E4m3>, Mask, 8, 2, 2, 8, 0>>;
    e4m3_d128 [Local] 128x32: Paged<FwdDequant<E, E4m3, Mask, 8, 2, 2, 8, 0>>;
    e4m3_d256 [Local] 64x32: Paged<FwdDequant<E, E4m3, Mask, 4, 1, 2, 16, 4>>;
    int8_d64 [Local] 128x64: Paged<FwdDequant<E, Int8, Mask, 8, 2, 4, 4, 4>>;
    int8_d128 [Local] 128x32: Paged<FwdDequant<E, Int8, Mask, 8, 2, 2, 8, 0>>;
    int8_d256 [Local] 64x32: Paged<FwdDequant<E, Int8, Mask, 4, 1, 2, 16, 4>>; }
    // Hopper's kernels for dense tensors. `MaskKind::Local` kernels support softcap, but no ALiBi slopes.
    // Kernels of the same head dim and mask are sorted by preference for long sequences.
    hopper {
    d64 [Full] 192x96: FwdHopper<E, Mask, 3, 6, 4, 3, false>;
    d64 [Causal] 192x96: FwdHopper<E, Mask, 3, 6, 4, 3, true>;
    d64 [Full, Causal, Local] 128x128: FwdHopper<E, Mask, 2, 8, 4, 3, true>;
    d80 [Full] 192x96: FwdHopper<E, Mask, 3, 6, 6, 3, true, 5>;
    d96 [Full] 192x80: FwdHopper<E, Mask, 3, 5, 6, 2, false>;
    d96 [Causal] 192x64: FwdHopper<E, Mask, 3, 4, 6, 3, true>;
    d96 [Full, Causal, Local] 128x128: FwdHopper<E, Mask, 2, 8, 6, 2, true>;
    d128 [Full, Causal] 128x128: FwdHopper<E, Mask, 2, 8, 8, 2, true>;
    d128 [Local] 128x96: FwdHopper<E, Mask, 2, 6, 8, 2, true>;
    d192 [Full] 128x112: FwdHopperWide<E, Mask, 2, 7, 12, 2, true>;
    d192 [Causal, Local] 128x96: FwdHopperWide<E, Mask, 2, 6, 12, 2, true>;
    d192x128 [Full, Causal] 128x128: FwdHopperWide<E, Mask, 2, 8, 12, 2, true, 8>;
    d256 [Full] 128x80: FwdHopperWide<E, Mask, 2, 5, 16, 2, false>;
    d256 [Causal, Local] 128x64: FwdHopperWide<E, Mask, 2, 4, 16, 2, true>;
    d512 [Full, Causal, Local] 128x32: FwdHopperHalves<E, Mask, 2, 2, 32, 2, true, 16>;
    d64 [Full, Causal, Local] 128x128_split: Split<FwdHopperWide<E, Mask, 2, 8, 4, 4, false>>;
    d128 [Full, Causal] 128x128_split: Split<FwdHopperWide<E, Mask, 2, 8, 8, 3, true>>;
    d128 [Local] 128x96_split: Split<FwdHopperWide<E, Mask, 2, 6, 8, 3, true>>; }
    // Hopper's `Varlen` kernels. Each head dim and mask has one tiling, with the most keys that leave
    // registers for the sequence's values. (At head dim 96, causal masks spill.) None supports ALiBi slopes.
    hopper_packed {
    d64 [Full, Causal, Local] 128x128: Varlen<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
    d96 [Full] 128x128: Varlen<FwdHopper<E, Mask, 2, 8, 6, 2, true>>;
    d128 [Full] 128x128: Varlen<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    d128 [Causal] 128x128: Varlen<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    d128 [Local] 128x96: Varlen<FwdHopper<E, Mask, 2, 6, 8, 2, true>>;
    d192 [Full, Causal, Local] 128x96: Varlen<FwdHopperWide<E, Mask, 2, 6, 12, 2, true>>;
    d192x128 [Full, Causal] 128x128: Varlen<FwdHopperWide<E, Mask, 2, 8, 12, 2, true, 8>>;
    d256 [Full, Causal, Local] 128x64: Varlen<FwdHopperWide<E, Mask, 2, 4, 16, 2, true>>;
    d512 [Full, Causal, Local] 128x32: Varlen<FwdHopperHalves<E, Mask, 2, 2, 32, 2, true, 16>>;
    }
    // Hopper's `Paged` kernels. Causal kernels also run full masks, but no softcap. No kernel supports ALiBi
    // slopes. (Head dim 256 spills, and windows on e4m3 caches of head dim 128 spill with 96 keys.)
    hopper_paged {
    d64 [Causal, Local] 128x128: Paged<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
    d128 [Causal] 128x128: Paged<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    d128 [Local] 128x96: Paged<FwdHopper<E, Mask, 2, 6, 8, 2, true>>;
    d192x128 [Causal] 128x128: Paged<FwdHopperWide<E, Mask, 2, 8, 12, 2, true, 8>>;
    d512 [Causal, Local] 128x32: Paged<FwdHopperHalves<E, Mask, 2, 2, 32, 2, true, 16>>;
    e4m3_d64 [Causal, Local] 128x128: Paged<FwdHopperDequant<E, Native<E4m3>, Mask, 2, 8, 4, 3, true>>;
    e4m3_d128 [Causal] 128x128: Paged<FwdHopperDequant<E, Native<E4m3>, Mask, 2, 8, 8, 2, true>>;
    e4m3_d128 [Local] 128x80: Paged<FwdHopperDequant<E, Native<E4m3>, Mask, 2, 5, 8, 2, true>>;
    }
    // Portable kernels for dense and varlen tensors whose mask or scores have parameters. Each head dim has
    // one tile, the largest that leaves enough registers. Windows with sinks also run full masks.
    fwd {
    d64 [Causal, Local] sink_128x64: With<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 4, 4, 4, 2>>;
    d64 [Causal, Local] sink_128x64_packed: With<Varlen<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 4, 4, 4, 2>>>;
    d128 [Local] sink_128x32: With<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 2, 8, 0, 2>>;
    d128 [Local] sink_128x32_packed: With<Varlen<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 2, 8, 0, 2>>>;
    // Biases of the same dtype as the tensors, or of f32.
    d64 [Full, Causal] bias_128x32: With<Fwd<E, Scored<Mask, Bias<E>>, 8, 2, 1, 2, 4, 4, 2>>;
    d64 [Full] bias_128x32_packed: With<Varlen<Fwd<E, Scored<Mask, Bias<E>>, 8, 2, 1, 2, 4, 4, 2>>>;
    d64 [Full] bias_f32_128x32: With<Fwd<E, Scored<Mask, Bias<F32>>, 8, 2, 1, 2, 4, 4, 2>>;
    d128 [Full, Causal] bias_128x32: With<Fwd<E, Scored<Mask, Bias<E>>, 8, 2, 1, 2, 8, 0, 2>>;
    d128 [Full] bias_128x32_packed: With<Varlen<Fwd<E, Scored<Mask, Bias<E>>, 8, 2, 1, 2, 8, 0, 2>>>;
    d128 [Full] bias_f32_128x32: With<Fwd<E, Scored<Mask, Bias<F32>>, 8, 2, 1, 2, 8, 0, 2>>;
    d64 [Prefix, Chunked, Bits] 128x64: With<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d64 [Prefix, Chunked, Bits] 128x64_packed: With<Varlen<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>>;
    d128 [Prefix, Chunked] 128x48: With<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>;
    d128 [Bits] 128x32: With<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    d128 [Prefix, Chunked] 128x48_packed: With<Varlen<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>>;
    d128 [Bits] 128x32_packed: With<Varlen<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>>;
    }
    // On a KV cache, with parameters.
    paged {
    d64 [Causal, Local] sink_128x64: With<Paged<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 4, 4, 4, 2>>>;
    e4m3_d64 [Local] sink_128x64_native:
        With<Paged<FwdDequant<E, Native<E4m3>, Scored<Mask, Sink>, 8, 2, 4, 4, 4>>>;
    d64 [Prefix, Chunked, Bits] 128x64: With<Paged<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>>;
    d128 [Local] sink_128x32: With<Paged<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 2, 8, 0, 2>>>;
    d128 [Prefix, Chunked] 128x48: With<Paged<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>>;
    d128 [Bits] 128x32: With<Paged<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>>;
    d256 [Bits] 64x32: With<Paged<Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>>>;
    e4m3_d128 [Bits] 128x32_native: With<Paged<FwdDequant<E, Native<E4m3>, Mask, 8, 2, 2, 8, 0>>>;
    e4m3_d256 [Bits] 64x32: With<Paged<FwdDequant<E, E4m3, Mask, 4, 1, 2, 16, 4>>>;
    int8_d128 [Bits] 128x32: With<Paged<FwdDequant<E, Int8, Mask, 8, 2, 2, 8, 0>>>;
    int8_d256 [Bits] 64x32: With<Paged<FwdDequant<E, Int8, Mask, 4, 1, 2, 16, 4>>>;
    }
    // Hopper's kernels whose mask or scores have parameters. Kernels of one head dim, mask and scores are
    // sorted by preference for long sequences.
    hopper {
    d64 [Causal] sink_192x96: With<FwdHopper<E, Scored<Mask, Sink>, 3, 6, 4, 3, true>>;
    d64 [Causal, Local] sink_128x128: With<FwdHopper<E, Scored<Mask, Sink>, 2, 8, 4, 3, true>>;
    d128 [Causal] sink_128x128: With<FwdHopper<E, Scored<Mask, Sink>, 2, 8, 8, 2, true>>;
    d128 [Local] sink_128x96: With<FwdHopper<E, Scored<Mask, Sink>, 2, 6, 8, 2, true>>;
    d64 [Causal] alibi_128x128: With<FwdHopper<E, Scored<Mask, CausalAlibi>, 2, 8, 4, 3, true>>;
    d128 [Causal] alibi_128x128: With<FwdHopper<E, Scored<Mask, CausalAlibi>, 2, 8, 8, 2, true>>;
    d64 [Full, Causal] bias_128x128: With<FwdHopper<E, TmaBias<Mask, E>, 2, 8, 4, 3, true>>;
    d128 [Full, Causal] bias_128x96: With<FwdHopperWide<E, TmaBias<Mask, E>, 2, 6, 8, 2, true>>;
    d64 [Prefix, Chunked] 192x96: With<FwdHopper<E, Mask, 3, 6, 4, 3, true>>;
    d64 [Prefix, Chunked] 128x128: With<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
    d128 [Prefix] 128x112: With<FwdHopper<E, Mask, 2, 7, 8, 2, true>>;
    d128 [Chunked] 128x128: With<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    // With the largest score of each row.
    d64 [Full] maxima_192x96: With<FwdHopper<E, Maxima<Mask>, 3, 6, 4, 3, false>>;
    d64 [Causal] maxima_128x128: With<FwdHopper<E, Maxima<Mask>, 2, 8, 4, 3, true>>;
    d128 [Full, Causal] maxima_128x128: With<FwdHopper<E, Maxima<Mask>, 2, 8, 8, 2, true>>;
    d192x128 [Full, Causal] maxima_128x128: With<FwdHopperWide<E, Maxima<Mask>, 2, 8, 12, 2, true, 8>>;
    // With 80 keys, the full mask's kernel would spill 4 bytes.
    d256 [Full, Causal] maxima_128x64: With<FwdHopperWide<E, Maxima<Mask>, 2, 4, 16, 2, true>>;
    }
    hopper_packed {
    d128 [Full] maxima_128x128: With<Varlen<FwdHopper<E, Maxima<Mask>, 2, 8, 8, 2, true>>>;
    d128 [Causal] maxima_128x128: With<Varlen<FwdHopper<E, Maxima<Mask>, 2, 8, 8, 2, false>>>;
    d64 [Causal, Local] sink_128x128: With<Varlen<FwdHopper<E, Scored<Mask, Sink>, 2, 8, 4, 3, true>>>;
    }
    hopper_paged {
    d64 [Causal, Local] sink_128x128: With<Paged<FwdHopper<E, Scored<Mask, Sink>, 2, 8, 4, 3, true>>>;
    e4m3_d64 [Local] sink_128x128:
        With<Paged<FwdHopperDequant<E, Native<E4m3>, Scored<Mask, Sink>, 2, 8, 4, 3, true>>>;
    }
    // Decode kernels for the sequences of few queries of a mixed batch. Kernels of windows serve every mask.
    mixed_few {
    d64 [Causal] 16_rows: FewQueries<Decode<E, E, Mask, Rows, 2, 4, 8, 3>>;
    d64 [Local] 16_rows_w4: FewQueries<Decode<E, E, Mask, Rows, 2, 4, 4, 4>>;
    d128 [Causal, Local] 16_rows_w4: FewQueries<Decode<E, E, Mask, Rows, 2, 8, 4, 3>>;
    d256 [Causal, Local] 8_rows: FewQueries<Decode<E, E, Mask, Rows, 1, 16, 3, 2>>;
    d256 [Local] 16_rows: FewQueries<Decode<E, E, Mask, Rows, 2, 16, 2, 2>>;
    // Caches of eight bits: cards with a conversion instruction.
    e4m3_d64 [Causal, Local] 16_rows_native: FewQueries<Decode<E, Native<E4m3>, Mask, Rows, 2, 4, 8, 4>>;
    e4m3_d128 [Causal, Local] 16_rows_native: FewQueries<Decode<E, Native<E4m3>, Mask, Rows, 2, 8, 8, 3>>;
    e4m3_d256 [Local] 8_rows_native: FewQueries<Decode<E, Native<E4m3>, Mask, Rows, 1, 16, 4, 3>>;
    int8_d64 [Local] 16_rows: FewQueries<Decode<E, Int8, Mask, Rows, 2, 4, 8, 4>>;
    int8_d128 [Causal] 16_rows: FewQueries<Decode<E, Int8, Mask, Rows, 2, 8, 8, 3>>;
    }
    // Portable kernels for the sequences of many queries of a mixed batch.
    mixed_many {
    d64 [Causal, Local] 128x64: ManyQueries<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d64 [Causal, Local] sink_128x64: With<ManyQueries<Fwd<E, Scored<Mask, Sink>, 8, 2, 1, 4, 4, 4, 2>>>;
    d128 [Causal] 128x48: ManyQueries<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>;
    d128 [Local] 128x32: ManyQueries<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    d256 [Causal, Local] 64x32: ManyQueries<Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>>;
    e4m3_d64 [Causal, Local] 128x64_native: ManyQueries<FwdDequant<E, Native<E4m3>, Mask, 8, 2, 4, 4, 4>>;
    e4m3_d64 [Local] sink_128x64_native:
        With<ManyQueries<FwdDequant<E, Native<E4m3>, Scored<Mask, Sink>, 8, 2, 4, 4, 4>>>;
    e4m3_d128 [Causal] 128x32_native: ManyQueries<FwdDequant<E, Native<E4m3>, Mask, 8, 2, 2, 8, 0>>;
    e4m3_d128 [Local] 64x32_native: ManyQueries<FwdDequant<E, Native<E4m3>, Mask, 4, 1, 2, 8, 4>>;
    e4m3_d256 [Local] 64x32_native: ManyQueries<FwdDequant<E, Native<E4m3>, Mask, 4, 1, 2, 16, 4>>;
    int8_d64 [Local] 128x64: ManyQueries<FwdDequant<E, Int8, Mask, 8, 2, 4, 4, 4>>;
    int8_d128 [Causal] 128x32: ManyQueries<FwdDequant<E, Int8, Mask, 8, 2, 2, 8, 0>>; }
    int8_f16 {
    d64 [Full, Causal, Local] 128x64: FwdInt8F16<E, Mask, 8, 2, 4, 4, 2>;
    d64 [Full, Causal, Local] 128x64_packed: Varlen<FwdInt8F16<E, Mask, 8, 2, 4, 4, 2>>;
    d128 [Full] 128x64: FwdInt8F16<E, Mask, 8, 2, 4, 8, 0>;
    d128 [Causal, Local] 128x48: FwdInt8F16<E, Mask, 8, 2, 3, 8, 0>;
    d128 [Full, Causal, Local] 64x64_packed: Varlen<FwdInt8F16<E, Mask, 4, 1, 4, 8, 0>>; }
    int8_fp8 {
    d64 [Full, Causal] 128x64: FwdInt8Fp8<E, Mask, 8, 2, 4, 4, 2>;
    d64 [Local] 128x64: FwdInt8Fp8<E, Mask, 8, 2, 4, 4, 0, 2>;
    d64 [Full, Causal] 64x64_packed: Varlen<FwdInt8Fp8<E, Mask, 4, 1, 4, 4, 2>>;
    d64 [Local] 128x64_packed: Varlen<FwdInt8Fp8<E, Mask, 8, 2, 4, 4, 0, 2>>;
    d128 [Full, Causal] 128x64: FwdInt8Fp8<E, Mask, 8, 2, 4, 8, 0>;
    d128 [Local] 128x64: FwdInt8Fp8<E, Mask, 8, 2, 4, 8, 0, 2>;
    d256 [Full, Causal] 128x64: FwdInt8Fp8<E, Mask, 8, 1, 4, 16, 0>;
    d256 [Local] 128x64: FwdInt8Fp8<E, Mask, 8, 1, 4, 16, 1, 2>;
    d128 [Full, Causal] 64x64_packed: Varlen<FwdInt8Fp8<E, Mask, 4, 1, 4, 8, 4>>;
    d128 [Local] 64x64_packed: Varlen<FwdInt8Fp8<E, Mask, 4, 1, 4, 8, 4, 2>>;
    // Kernels of full and causal masks would spill 12 and 8 bytes.
    d256 [Local] 128x64_packed: Varlen<FwdInt8Fp8<E, Mask, 8, 1, 4, 16, 1, 2>>; }
    int8_fp8_paged {
    int8_d64 [Causal] 128x64: Paged<FwdInt8Fp8<E, Mask, 8, 2, 4, 4, 2>>;
    int8_d64 [Local] 128x64: Paged<FwdInt8Fp8<E, Mask, 8, 2, 4, 4, 0, 2>>;
    int8_d128 [Causal] 128x64: Paged<FwdInt8Fp8<E, Mask, 8, 2, 4, 8, 0>>;
    int8_d128 [Local] 64x64: Paged<FwdInt8Fp8<E, Mask, 4, 1, 4, 8, 4, 2>>; }
    fp8 {
    d64 [Full, Causal, Local] 128x128: FwdHopperFp8<E, Mask, 2, 8, 4, 4>;
    d128 [Full, Causal, Local] 128x128: FwdHopperFp8<E, Mask, 2, 8, 8, 3>;
    d256 [Full, Causal, Local] 128x64: FwdHopperFp8<E, Mask, 2, 4, 16, 3>; }
    fp8_packed {
    d64 [Full, Causal, Local] 128x128: Varlen<FwdHopperFp8<E, Mask, 2, 8, 4, 4>>;
    d128 [Full, Causal, Local] 128x128: Varlen<FwdHopperFp8<E, Mask, 2, 8, 8, 3>>;
    d256 [Full, Causal, Local] 128x64: Varlen<FwdHopperFp8<E, Mask, 2, 4, 16, 3>>; }
    fp8_paged {
    e4m3_d64 [Causal, Local] 128x128: Paged<FwdHopperFp8<E, Mask, 2, 8, 4, 4>>;
    e4m3_d128 [Causal, Local] 128x128: Paged<FwdHopperFp8<E, Mask, 2, 8, 8, 3>>;
    // A causal kernel would spill 12 bytes.
    e4m3_d256 [Local] 128x64: Paged<FwdHopperFp8<E, Mask, 2, 4, 16, 3>>; }
    // `MlaDequant` on rows of `E4m3Scaled`, whose rotary columns are bf16, as queries must be.
    [Bf16]
    mla {
    e4m3_scaled_d576 [Causal] 16x32_native:
        MlaDequant<E, Native<E4m3Scaled>, Mask, 2, 1, 2, 36, 48, 32, 8, 4, true>;
    e4m3_scaled_d576 [Causal] 16x32: MlaDequant<E, E4m3Scaled, Mask, 2, 1, 2, 36, 48, 32, 8, 4, true>;
    e4m3_scaled_d576 [Causal] 32x32_native:
        MlaDequant<E, Native<E4m3Scaled>, Mask, 4, 1, 2, 36, 48, 32, 4, 8, true>;
    e4m3_scaled_d576 [Causal] 32x32: MlaDequant<E, E4m3Scaled, Mask, 4, 1, 2, 36, 48, 32, 4, 8, true>;
    }
    sparse_mla {
    e4m3_scaled_d576 [Full] 16x32_native:
        Sparse<MlaDequant<E, Native<E4m3Scaled>, Mask, 2, 1, 2, 36, 48, 32, 8, 4, true>>;
    e4m3_scaled_d576 [Full] 16x32: Sparse<MlaDequant<E, E4m3Scaled, Mask, 2, 1, 2, 36, 48, 32, 8, 4, true>>;
    e4m3_scaled_d576 [Full] 32x32_native:
        Sparse<MlaDequant<E, Native<E4m3Scaled>, Mask, 4, 1, 2, 36, 48, 32, 4, 8, true>>;
    e4m3_scaled_d576 [Full] 32x32: Sparse<MlaDequant<E, E4m3Scaled, Mask, 4, 1, 2, 36, 48, 32, 4, 8, true>>;
    }
    hopper_mla {
    e4m3_scaled_d576 [Causal] 64x64: MlaHopperDequant<E, Native<E4m3Scaled>, Mask>;
    }
    hopper_sparse_mla {
    e4m3_scaled_d576 [Full] 64x64: Sparse<MlaHopperDequant<E, Native<E4m3Scaled>, Mask>>;
    }
    }
} }

for_each_kernel!(list);
