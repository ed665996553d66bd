//! Forward attention for Hopper alone: warpgroups whose products are `wgmma`'s, a copy engine that fills
//! their stages, and blocks that do tile after tile.
use crate::*;
use core::marker::PhantomData;

/// Forward attention by `W` warpgroups of 64 queries each, which take turns at issuing products, and one more
/// that copies. A stage has `N` base tiles of keys, a head dim `D`; there are `STAGES` of K and as many of V.
/// A tile's first scores are computed beside the last product of the tile before: so there are two places for
/// Q, and one for O on its way out.
///
/// `ORDERED` says how row sums are taken, which is a matter of the assembler's schedule alone.
pub struct FwdHopper<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
>(PhantomData<(E, Mask)>);

/// The same for head dims whose Q fills so much shared memory that O must leave through its place: a tile
/// begins when the one before is stored.
pub struct FwdHopperWide<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
>(PhantomData<(E, Mask)>);

/// What a Hopper kernel is told, of queries and output through maps of kind `Q`, of keys and values through
/// those of kind `K`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperParams<Q = TensorMap, K = Q> {
    /// Queries: boxes of [`EntryInfo::Q_BOX_ROWS`] rows and [`EntryInfo::panel`] columns.
    pub q: Q,
    /// Keys: boxes of [`EntryInfo::tile_n`] rows, or as many as divide a page, and as many columns.
    pub k: K,
    /// Values: boxes as those of `k`.
    pub v: K,
    /// Output, as many rows and heads as `q`, and the same boxes.
    pub o: Q,
    /// Log-sum-exp of each row, natural logarithm.
    pub lse: Lse,
    /// Which block does which tiles.
    pub rounds: TileRounds,
    /// As [`FwdParams::window`].
    pub window: Window,
    /// As [`FwdParams::scale_log2`].
    pub scale_log2: f32,
    /// As [`FwdParams::softcap`].
    pub softcap: f32,
    /// Queries of a head, 1 or more.
    pub q_len: u32,
    /// Keys of a head, 1 or more.
    pub k_len: u32,
}

impl<Q, K> AsRef<HopperParams<Q, K>> for HopperParams<Q, K> {
    #[inline(always)]
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Bytes of one base tile.
const fn tile_bytes<E: Element>() -> usize {
    256 * E::BYTES
}

/// What rings of Q, K and V take beside their stages: their barriers, and what makes them whole 1024 bytes.
const RING_BYTES: usize = 3 * 1024;

macro_rules! hopper {
    ($($config:ident: smem tiles $tiles:expr;)*) => {$(
        impl<
            E: Element,
            Mask: MaskMarker,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
        > Kernel for $config<E, Mask, W, N, D, STAGES, ORDERED>
        {
            type Params = HopperParams;
            const TARGET: Target = Target::Exactly(90);
            const THREADS: u32 = 128 * (W as u32 + 1);
            const SMEM_BYTES: usize =
                tile_bytes::<E>() * D * (($tiles)(W, N, STAGES)) + RING_BYTES;
            const PARAM_ALIGN: u32 = TensorMap::ALIGN;
            const BOXES: &'static [[u32; 2]] = &boxes(D as u32 * 16, N as u32 * 16);
            fn grid(params: &HopperParams) -> [u32; 3] {
                [params.rounds.blocks(), 1, 1]
            }
        }
        impl<
            E: Element,
            Mask: MaskMarker,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
        > Forward for $config<E, Mask, W, N, D, STAGES, ORDERED>
        {
            const DTYPE: DType = E::DTYPE;
            const HEAD_DIM: u32 = D as u32 * 16;
            const MASK: MaskKind = Mask::KIND;
            const SCHEDULE: Schedule = Schedule::InTurns;
            const TILE_M: u32 = W as u32 * 64;
            const TILE_N: u32 = N as u32 * 16;
            const STAGES: u32 = STAGES as u32;
            const PATH: Path = E::PATH;
            const GRID: Grid = Grid::Rounds;
        }
    )*};
}
hopper! {
    FwdHopper: smem tiles narrow_tiles;
    FwdHopperWide: smem tiles wide_tiles;
}

/// Base tiles a column of shared memory has: two places for Q and one for O, the stages of K and V.
const fn narrow_tiles(w: usize, n: usize, stages: usize) -> usize {
    3 * 4 * w + 2 * stages * n
}

/// The same with one place for Q and O.
const fn wide_tiles(w: usize, n: usize, stages: usize) -> usize {
    4 * w + 2 * stages * n
}

impl EntryInfo {
    /// Rows of the boxes in which a Hopper kernel's Q and O are copied: a warpgroup's.
    pub const Q_BOX_ROWS: u32 = 64;

    /// Columns of all boxes of a Hopper kernel: 64, swizzled by 128 bytes, or where the head dim is an odd
    /// number of 32, 32, swizzled by 64.
    pub const fn panel(&self) -> u32 {
        panel(self.head_dim)
    }

    /// Columns and rows of a Hopper kernel's boxes: those of Q and O, those of K and V.
    pub const fn boxes(&self) -> [[u32; 2]; 2] {
        boxes(self.head_dim, self.tile_n)
    }
}

/// [`EntryInfo::boxes`] of a configuration.
const fn boxes(head_dim: u32, tile_n: u32) -> [[u32; 2]; 2] {
    [[panel(head_dim), EntryInfo::Q_BOX_ROWS], [panel(head_dim), tile_n]]
}

/// Columns of boxes, for a head dim.
pub(crate) const fn panel(head_dim: u32) -> u32 {
    if head_dim.is_multiple_of(64) { 64 } else { 32 }
}

/// Expands `$emit!` with every Hopper kernel, for both element types and each of its masks: `symbol [E = F16,
/// Mask = Causal]: Configuration;`. Symbols are `hopper_{dtype}_d{head dim}_{mask}_{queries of a
/// block}x{keys of a stage}`. Entries of one head dim and mask stand in the order in which long sequences
/// prefer them. What ends in `_split` shares a tile's keys.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_hopper { ($emit:ident) => { $crate::hopper_lines! { $emit:
    d64 [Full] 192x96: FwdHopper<E, Mask, 3, 6, 4, 3, false>;
    d64 [Causal] 192x96: FwdHopper<E, Mask, 3, 6, 4, 3, true>;
    d64 [Full, Causal, Local] 128x128: FwdHopper<E, Mask, 2, 8, 4, 3, true>;
    d96 [Full, Causal, Local] 128x128: FwdHopper<E, Mask, 2, 8, 6, 2, true>;
    d128 [Full, Causal] 128x128: FwdHopper<E, Mask, 2, 8, 8, 2, true>;
    d128 [Local] 128x96: FwdHopper<E, Mask, 2, 6, 8, 2, true>;
    d192 [Full] 128x112: FwdHopperWide<E, Mask, 2, 7, 12, 2, true>;
    d192 [Causal, Local] 128x96: FwdHopperWide<E, Mask, 2, 6, 12, 2, true>;
    d256 [Full] 128x80: FwdHopperWide<E, Mask, 2, 5, 16, 2, false>;
    d256 [Causal, Local] 128x64: FwdHopperWide<E, Mask, 2, 4, 16, 2, true>;
    d64 [Full, Causal] 128x128_split: HopperSplit<FwdHopperWide<E, Mask, 2, 8, 4, 4, false>>;
    d128 [Full, Causal] 128x128_split: HopperSplit<FwdHopperWide<E, Mask, 2, 8, 8, 3, true>>;
} } }

/// Expands lines of Hopper kernels for both element types and each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! hopper_lines {
    ($emit:ident: $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<hopper_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<hopper_bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

macro_rules! hopper_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled Hopper kernel. [`MaskKind::Local`] ones know softcap, and no ALiBi slopes.
        pub const HOPPERS: &[EntryInfo] = &[$({
            $(type $name = $type;)*
            EntryInfo::of::<$config>(Contract::of::<$config>(stringify!($symbol)))
        }),*];
    };
}
for_each_hopper!(hopper_entries);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn symbols_say_what_they_are_and_blocks_fit_a_hopper() {
        for e in HOPPERS {
            let name = format!("hopper_{}_d{}_{}", e.dtype.name(), e.head_dim, e.mask.name());
            let apart = if e.grid == Grid::Slices { "_split" } else { "" };
            assert_eq!(e.contract.symbol, format!("{name}_{}x{}{apart}", e.tile_m, e.tile_n));
            assert!(e.contract.smem_bytes <= 227 << 10, "{}: {}", e.contract.symbol, e.contract.smem_bytes);
            assert_eq!((e.contract.target, e.contract.param_align), (Target::Exactly(90), 64));
            assert!(e.head_dim.is_multiple_of(e.panel()) && e.tile_n <= 256);
        }
    }

    #[test]
    fn parameters_have_no_padding_and_begin_with_their_maps() {
        let rest = size_of::<Lse>() + size_of::<TileRounds>() + size_of::<Window>() + 4 * 4;
        assert_eq!(size_of::<HopperParams>(), 4 * 128 + rest);
        assert_eq!(core::mem::offset_of!(HopperParams, o), 3 * 128);
        assert_eq!(size_of::<HopperSplitParams>(), size_of::<HopperParams>() + size_of::<Partials>());
    }
}
