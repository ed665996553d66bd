//! Forward attention for Hopper alone: warpgroups whose products are `wgmma`'s, a copy engine that fills
//! their stages, and blocks that do tile after tile.
use crate::info::boxes;
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
    /// Queries: boxes of [`AttnInfo::Q_BOX_ROWS`] rows and [`AttnInfo::panel`] columns.
    pub q: Q,
    /// Keys: boxes of [`AttnInfo::tile_n`] rows, or as many as divide a page, and as many columns.
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
        > Line for $config<E, Mask, W, N, D, STAGES, ORDERED>
        {
            type Info = AttnInfo;
            const INFO: AttnInfo = AttnInfo {
                contract: Contract::of::<Self>(""),
                isa: Isa::Sm90a,
                path: E::PATH,
                schedule: Schedule::PingPong,
                scheduler: TileScheduler::Persistent,
                queries: Queries::Batched,
                keys: Keys::Batched,
                splits: false,
                dtype: E::DTYPE,
                kv_dtype: E::DTYPE,
                head_dim: D as u32 * 16,
                mask: Mask::KIND,
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
        > Forward for $config<E, Mask, W, N, D, STAGES, ORDERED>
        {
            type Isa = Sm90a;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_no_padding_and_begin_with_their_maps() {
        let rest = size_of::<Lse>() + size_of::<TileRounds>() + size_of::<Window>() + 4 * 4;
        assert_eq!(size_of::<HopperParams>(), 4 * 128 + rest);
        assert_eq!(core::mem::offset_of!(HopperParams, o), 3 * 128);
        assert_eq!(size_of::<SplitParams<HopperParams>>(), size_of::<HopperParams>() + size_of::<Partials>());
        let told = 3 * size_of::<Integers>() + size_of::<Sequences>() + 4;
        assert_eq!(size_of::<VarlenParams<HopperParams<RaggedMap>>>(), size_of::<HopperParams>() + told);
        assert_eq!(size_of::<HopperParams<RaggedMap>>(), size_of::<HopperParams>());
        let told = size_of::<Cache>() + 2 * size_of::<Integers>() + size_of::<Sequences>();
        let told = told + size_of::<FastDiv>() + 2 * 4;
        assert_eq!(size_of::<HopperPagedParams>(), size_of::<HopperParams>() + told);
        assert_eq!(size_of::<HopperParams<RaggedMap, PagedMap>>(), size_of::<HopperParams>());
    }
}
