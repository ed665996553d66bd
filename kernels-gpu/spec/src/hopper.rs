//! Forward attention on Hopper: consumer warpgroups with `wgmma`, a TMA producer, persistent blocks.
use crate::info::{bias_box, boxes, panel};
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Ping-pong forward attention: `W` consumer warpgroups of 64 queries each take turns at issuing products,
/// and a producer warpgroup copies. A stage has `N` base tiles of keys, and the head dim has `D` base tiles;
/// there are `STAGES` stages of K and `STAGES` stages of V. Cross-tile overlap: a work tile's first scores
/// are computed beside the last product of the previous tile. Cross-tile overlap needs shared memory for two
/// tiles of Q, and a TMA store buffer for O.
///
/// `ORDERED` selects the order of row sums. This order only affects the order in which ptxas puts
/// instructions.
///
/// Products compute the first `OF` of the `D` base tiles of columns. The others complete the last panel of
/// tiles in shared memory.
pub struct FwdHopper<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const OF: usize = D,
>(PhantomData<(E, Mask)>);

/// [`FwdHopper`] for head dims whose Q leaves no shared memory for O: O is stored through Q's shared memory,
/// and a work tile starts after the previous tile is stored. V and O have `DV` base tiles of columns.
pub struct FwdHopperWide<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const DV: usize = D,
>(PhantomData<(E, Mask)>);

/// [`FwdHopperWide`] for head dims whose O leaves no registers: a work tile has `H` of the `D` base tiles of
/// columns of V and O ([`AttnInfo::shares`]). Two work tiles compute a tile of queries, and both compute its
/// scores. With 128 queries, they read fewer bytes of K and V than two tiles of 64 queries with all columns:
/// `2 (2 D + D)` instead of `2 (2 D + 2 D)` for each key.
pub struct FwdHopperHalves<
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const H: usize,
>(PhantomData<(E, Mask)>);

/// Parameters of a Hopper kernel, with tensor maps of kind `Q` for queries and output, and of kind `K` for
/// keys and values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperParams<Q = TensorMap, K = Q> {
    /// Queries: boxes of [`AttnInfo::Q_BOX_ROWS`] rows and `AttnInfo::panel` columns.
    pub q: Q,
    /// Keys: boxes of `AttnInfo::panel` columns and [`AttnInfo::tile_n`] rows; for pages, of a number of
    /// rows that divides a page.
    pub k: K,
    /// Values, with the boxes of `k`.
    pub v: K,
    /// Output, with the rows, heads and boxes of `q`.
    pub o: Q,
    /// LSE of each row, natural logarithm.
    pub lse: Lse,
    /// The persistent tile scheduler.
    pub rounds: TileRounds,
    /// See [`FwdParams::window`].
    pub window: Window,
    /// See [`FwdParams::scale_log2`].
    pub scale_log2: f32,
    /// See [`FwdParams::softcap`].
    pub softcap: f32,
    /// Queries per head, at least 1.
    pub q_len: u32,
    /// Keys per head, at least 1.
    pub k_len: u32,
}
contract::no_padding! {
    HopperParams<TensorMap> { q, k, v, o, lse, rounds, window, scale_log2, softcap, q_len, k_len }
    HopperParams<RaggedMap> { q, k, v, o, lse, rounds, window, scale_log2, softcap, q_len, k_len }
    HopperParams<RaggedMap, PagedMap> {
        q, k, v, o, lse, rounds, window, scale_log2, softcap, q_len, k_len
    }
}
// The host writes four tensor maps at the beginning of the parameters.
const _: () = assert!(core::mem::offset_of!(HopperParams, o) == 3 * size_of::<TensorMap>());

no_variant!(HopperParams<Q, K>, Q, K);

impl<Q: Copy, K: Copy> Scheduled for HopperParams<Q, K> {
    fn order(&self) -> &TileOrder {
        &self.rounds.order
    }
    fn blocks(&self) -> u32 {
        self.rounds.blocks()
    }
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

/// Bytes of the pipelines of Q, K and V in addition to their stages: mbarriers, and padding to 1024 bytes.
const RING_BYTES: usize = 3 * 1024;

/// Bytes of the stages that masks and scores read beside keys, with their pipeline.
const fn staged_bytes<Mask: MaskMarker>(w: usize, n: usize) -> usize {
    match Mask::STAGED_BYTES {
        0 => 0,
        bytes => TmaBias::<Mask, ()>::STAGES * w * n * 4 * 256 * bytes + 1024,
    }
}

/// The boxes of a kernel: of Q and O, of K and V, and of the stages that masks and scores read beside keys.
struct Boxes<Mask, const N: usize, const D: usize>(PhantomData<Mask>);

impl<Mask: MaskMarker, const N: usize, const D: usize> Boxes<Mask, N, D> {
    const THREE: [[u32; 2]; 3] = {
        let [q, k] = boxes(D as u32 * 16, N as u32 * 16);
        [q, k, bias_box(N as u32 * 16)]
    };
    const ALL: &'static [[u32; 2]] = Self::THREE.split_at(if Mask::STAGED_BYTES > 0 { 3 } else { 2 }).0;
}

macro_rules! hopper {
    ($(
        $config:ident<$($v:ident)?>, $schedule:ident, columns $d:ident, values $dv:ident of $all:ident:
        smem tiles $tiles:expr;
    )*) => {$(
        impl<
            E: Element,
            Mask: MaskMarker,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
            $(const $v: usize,)?
        > Kernel for $config<E, Mask, W, N, D, STAGES, ORDERED, $($v)?>
        {
            type Params = HopperParams;
            const TARGET: Target = Target::Exactly(90);
            const THREADS: u32 = 128 * (W as u32 + 1);
            const SMEM_BYTES: usize = {
                assert!(panel(D as u32 * 16) == panel($dv as u32 * 16), "one box must fit keys and values");
                assert!($d <= D && D - $d < panel(D as u32 * 16) as usize / 16, "a panel has no column");
                assert!(panel(D as u32 * 16) == panel($d as u32 * 16), "one box must fit the columns");
                let tiles = ($tiles)([D, $dv], W, N * STAGES);
                tile_bytes::<E>() * tiles + RING_BYTES + staged_bytes::<Mask>(W, N)
            };
            const PARAM_ALIGN: u32 = TensorMap::ALIGN;
            const BOXES: &'static [[u32; 2]] = Boxes::<Mask, N, D>::ALL;
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
            $(const $v: usize,)?
        > Line for $config<E, Mask, W, N, D, STAGES, ORDERED, $($v)?>
        {
            type Info = AttnInfo;
            const INFO: AttnInfo = AttnInfo {
                contract: Contract::of::<Self>(""),
                pass: Pass::Forward,
                isa: Isa::Sm90a,
                path: E::PATH,
                schedule: Schedule::$schedule,
                scheduler: TileScheduler::Persistent,
                queries: Queries::Batched,
                keys: Keys::Batched,
                splits: false,
                dtype: E::DTYPE,
                kv_dtype: E::DTYPE,
                o_dtype: E::DTYPE,
                grad_dtype: None,
                head_dim: $d as u32 * 16,
                head_dim_v: $all as u32 * 16,
                mask: Mask::KIND,
                scores: Mask::SCORES,
                tile_m: W as u32 * 64,
                tile_n: N as u32 * 16,
                stages: STAGES as u32,
            };
        }
        impl<
            E: Element,
            Mask: MaskMarker,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
            $(const $v: usize,)?
        > AttnKernel for $config<E, Mask, W, N, D, STAGES, ORDERED, $($v)?>
        {
            type Isa = Sm90a;
            type Mask = Mask;
        }
        impl<
            E: Element,
            Mask: MaskMarker,
            const W: usize,
            const N: usize,
            const D: usize,
            const STAGES: usize,
            const ORDERED: bool,
            $(const $v: usize,)?
        > Forward for $config<E, Mask, W, N, D, STAGES, ORDERED, $($v)?>
        {
            type Scales = ();
            type OnVarlen = <Sm90a as IsaMarker>::OnVarlen;
        }
    )*};
}
hopper! {
    FwdHopper<OF>, PingPong, columns OF, values D of OF: smem tiles narrow_tiles;
    FwdHopperWide<DV>, PingPong, columns D, values DV of DV: smem tiles wide_tiles;
    FwdHopperHalves<H>, Halves, columns D, values H of D: smem tiles wide_tiles;
}

/// Base tiles of shared memory: two tiles of Q and one tile of O, of `w` warpgroups, and all stages of K and
/// V, which together have `n` base tiles of keys.
const fn narrow_tiles([d, dv]: [usize; 2], w: usize, n: usize) -> usize {
    (2 * d + dv) * 4 * w + (d + dv) * n
}

/// Base tiles of shared memory, if Q and O share one tile.
const fn wide_tiles([d, dv]: [usize; 2], w: usize, n: usize) -> usize {
    d * 4 * w + (d + dv) * n
}
