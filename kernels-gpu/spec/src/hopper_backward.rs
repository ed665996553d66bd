//! Hopper's backward: [`BwdHopper`] computes all gradients in one pass over the scores, and leaves dQ as sums
//! in f32. [`BwdConvertDq`] rounds the sums.
use crate::info::boxes;
use crate::*;
use core::marker::PhantomData;

/// Gradients of `M` base tiles of keys and of their values, 64 rows for each of `W` warpgroups, over stages
/// of `N` base tiles of queries. The head dim has `D` base tiles. Each warpgroup adds `SHARE` base tiles of
/// columns to dQ's sums: its part of the columns of a stage of 64 queries, or all columns of its part of the
/// queries.
///
/// Blocks are persistent and take work tiles from a counter. They add to a stage's sums in the order of their
/// keys, so a repeated launch gives identical bits.
pub struct BwdHopper<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
>(PhantomData<(E, Mask)>);

/// Rounds dQ's sums: 64 queries per block, of which each of `W` warpgroups has `SHARE` of `D` base tiles of
/// columns.
pub struct BwdConvertDq<E, const W: usize, const SHARE: usize, const D: usize>(PhantomData<E>);

/// Parameters of a [`BwdHopper`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdHopperParams {
    /// Queries: boxes of [`AttnInfo::tile_n`] rows and `AttnInfo::panel` columns.
    pub q: TensorMap,
    /// The gradient of O, with the boxes of `q`.
    pub d_o: TensorMap,
    /// Keys: boxes of 64 rows and `AttnInfo::panel` columns.
    pub k: TensorMap,
    /// Values, with the boxes of `k`.
    pub v: TensorMap,
    /// The gradient of the keys, with the boxes of `k`.
    pub dk: TensorMap,
    /// The gradient of the values, with the boxes of `k`.
    pub dv: TensorMap,
    /// See [`BwdParams::minus_lse`].
    pub minus_lse: PaddedVector,
    /// See [`BwdParams::delta`].
    pub delta: PaddedVector,
    /// The sums of dQ without its scale, in tiles of [`AttnInfo::tile_n`] queries: see [`DqScratch`].
    pub sums: TileSums,
    /// See [`FwdParams::window`].
    pub window: Window,
    /// See [`FwdParams::scale_log2`].
    pub scale_log2: f32,
    /// See [`FwdParams::softcap`].
    pub softcap: f32,
    /// The factor of products of queries and keys.
    pub scale: f32,
    /// Queries per head, at least 1.
    pub q_len: u32,
    /// Keys per head, at least 1.
    pub k_len: u32,
    /// Query heads per key head.
    pub heads_per_kv: u32,
    /// The order of work tiles: of keys and key heads, in groups of [`DqScratch::group`] heads.
    pub order: TileOrder,
    /// See [`FwdParams::alibi`].
    pub alibi: PerHead,
}

/// Parameters of a [`BwdConvertDq`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdConvertDqParams {
    /// The sums, in tiles of 64 queries.
    pub sums: TileSums,
    /// The gradient of the queries.
    pub dq: Tensor,
    /// Query heads per batch.
    pub heads: FastDiv,
    /// Tiles per head.
    pub tiles: FastDiv,
    /// The factor of products of queries and keys.
    pub scale: f32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    BwdHopperParams {
        q, d_o, k, v, dk, dv, minus_lse, delta, sums, window, scale_log2, softcap, scale, q_len, k_len,
        heads_per_kv, order, alibi
    }
    BwdConvertDqParams { sums, dq, heads, tiles, scale, reserved }
}
// The host writes six tensor maps at the beginning of the parameters.
const _: () = assert!(core::mem::offset_of!(BwdHopperParams, dv) == 5 * size_of::<TensorMap>());

/// The scratch memory of a [`BwdHopper`] kernel's launch, and the order of its work tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DqScratch {
    /// Tiles of queries per head: [`TileSums::tiles`].
    pub tiles: u32,
    /// Bytes of the sums at [`TileSums::base`]. They need no value before the launch.
    pub sum_bytes: u64,
    /// Words at [`TileSums::counters`]. They must be 0 before the launch.
    pub counters: u64,
    /// Largest number of key heads that run together.
    pub group: u32,
}

impl DqScratch {
    /// The scratch memory of kernel `kernel` for `heads` query heads (of all batches) of `q_len` queries,
    /// with `heads_per_kv` query heads per key head.
    ///
    /// Blocks of one head follow each other from tile to tile. If the key blocks of more heads run together,
    /// a block rarely waits for its turn, but the tiles leave the L2 cache sooner. Measured on an H200 with
    /// 16,384 queries in all: a group with 512 tiles of queries is fastest, with a causal mask a group with
    /// 1024.
    pub const fn new(kernel: &AttnInfo, heads: u32, q_len: u32, heads_per_kv: u32) -> Self {
        let tiles = q_len.div_ceil(kernel.tile_n);
        let tile_bytes = kernel.tile_n as u64 * kernel.head_dim as u64 * 4;
        let together = if matches!(kernel.mask, MaskKind::Full) { 512 } else { 1024 };
        let per_kv = tiles as u64 * heads_per_kv as u64;
        let group = together / if per_kv == 0 { 1 } else { per_kv };
        DqScratch {
            tiles,
            sum_bytes: heads as u64 * tiles as u64 * tile_bytes,
            counters: TileSums::words(heads, tiles),
            group: if group == 0 { 1 } else { group as u32 },
        }
    }
}

/// The boxes of a [`BwdHopper`] kernel.
struct Boxes<const N: usize, const D: usize>;
impl<const N: usize, const D: usize> Boxes<N, D> {
    const ALL: [[u32; 2]; 2] = boxes(D as u32 * 16, N as u32 * 16);
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
> Kernel for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES>
{
    type Params = BwdHopperParams;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = 128 * (W as u32 + 1);
    const SMEM_BYTES: usize = {
        assert!(M == 4 * W, "a warpgroup has 64 keys");
        let base_tile = 256 * E::BYTES;
        let kept = 2 * (M * D * base_tile + 1024);
        let stages = 2 * (STAGES * (N * D * base_tile + (N * 64).next_multiple_of(1024)) + 1024);
        // dS twice, tickets and turns.
        kept + stages + 2 * N * M * base_tile + 32 + 48
    };
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    const BOXES: &'static [[u32; 2]] = &Boxes::<N, D>::ALL;
    fn grid(params: &BwdHopperParams) -> [u32; 3] {
        [params.order.tiles.min(params.order.resident), 1, 1]
    }
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
> Line for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        pass: Pass::Gradients,
        isa: Isa::Sm90a,
        path: E::PATH,
        schedule: Schedule::Transposed,
        scheduler: TileScheduler::Persistent,
        queries: Queries::Batched,
        keys: Keys::Batched,
        splits: false,
        dtype: E::DTYPE,
        kv_dtype: E::DTYPE,
        o_dtype: E::DTYPE,
        grad_dtype: Some(E::DTYPE),
        head_dim: D as u32 * 16,
        head_dim_v: D as u32 * 16,
        mask: Mask::KIND,
        scores: Mask::SCORES,
        tile_m: M as u32 * 16,
        tile_n: N as u32 * 16,
        stages: STAGES as u32,
    };
}

impl<
    E: Element,
    Mask: MaskMarker,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
> AttnKernel for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES>
{
    type Isa = Sm90a;
    type Mask = Mask;
}

impl<E: Element, const W: usize, const SHARE: usize, const D: usize> Kernel for BwdConvertDq<E, W, SHARE, D> {
    type Params = BwdConvertDqParams;
    const THREADS: u32 = 128 * W as u32;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &BwdConvertDqParams) -> [u32; 3] {
        [params.tiles.get() * params.sums.heads(), 1, 1]
    }
}

impl<E: Element, const W: usize, const SHARE: usize, const D: usize> Line for BwdConvertDq<E, W, SHARE, D> {
    type Info = ConvertDqInfo;
    const INFO: ConvertDqInfo = ConvertDqInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        shares_columns: SHARE < D,
    };
}

/// A compiled [`BwdConvertDq`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertDqInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of dQ.
    pub dtype: DType,
    /// Columns of the sums.
    pub head_dim: u32,
    /// Whether the sums are those of stages of 64 queries, whose columns the warpgroups share.
    pub shares_columns: bool,
}

impl ConvertDqInfo {
    /// Whether the kernel rounds the sums of kernel `of`.
    pub fn rounds(&self, of: &AttnInfo) -> bool {
        self.dtype == of.dtype && self.head_dim == of.head_dim && self.shares_columns == (of.tile_n == 64)
    }
}
