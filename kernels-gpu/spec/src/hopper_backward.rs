//! Hopper's backward: [`BwdHopper`] computes all gradients in one pass over the scores, and leaves dQ as sums
//! in f32. [`BwdConvertDq`] rounds the sums.
use crate::info::boxes;
use crate::*;
use core::marker::PhantomData;

/// Gradients of `M` base tiles of keys and of their values, in `T` tiles of 64 rows, over stages of `N` base
/// tiles of queries. The head dim has `D` base tiles. Each of `W` warpgroups has a tile and all of its `C`
/// base tiles of columns, or a part of the columns of the only tile, whose scores all of them compute.
/// Each warpgroup adds a part of 64 rows and `SHARE` base tiles of columns to dQ's sums:
///
/// | queries of a stage | rows | columns |
/// |---|---|---|
/// | 64 | all queries | the warpgroup's part of the head dim |
/// | 64 per warpgroup | the warpgroup's part of the queries | the head dim |
/// | others | of dQ^T: the warpgroup's part of the head dim | of dQ^T: all queries |
///
/// Blocks are persistent and take work tiles from a counter. They add to a stage's sums in the order of their
/// keys, so a repeated launch gives identical bits. `Map` is the kind of all tensor maps.
pub struct BwdHopper<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const SHARE: usize,
    const STAGES: usize,
    Map = TensorMap,
    const T: usize = W,
    const C: usize = D,
    const V: usize = C,
    const DEPTH: usize = D,
    const DEPTH_V: usize = DEPTH,
>(PhantomData<(E, Mask, Map)>);

/// A kind of tensor maps of a [`BwdHopper`] kernel.
pub trait BwdMap: Copy + 'static {
    /// Parameters of varlen sequences.
    type Sequences: Copy;
    /// The note about a work tile that the producer passes to the other warps.
    type Note: NoteWords;
    /// The layout of queries and of keys.
    const LAYOUTS: (Queries, Keys);
}

/// Batches of equal lengths.
impl BwdMap for TensorMap {
    type Sequences = ();
    type Note = u32;
    const LAYOUTS: (Queries, Keys) = (Queries::Batched, Keys::Batched);
}

/// Varlen tensors.
impl BwdMap for RaggedMap {
    type Sequences = BwdRagged;
    type Note = [[u32; 4]; 3];
    const LAYOUTS: (Queries, Keys) = (Queries::Varlen, Keys::Varlen);
}

/// Rounds dQ's sums. Of 64 queries per block, each of `W` warpgroups has `SHARE` of `D` base tiles of
/// columns. Or the sums are those of dQ^T: a block has `SHARE` base tiles of queries, and each of the
/// warpgroups has 4 of `D` base tiles of columns.
pub struct BwdConvertDq<E, const W: usize, const SHARE: usize, const D: usize>(PhantomData<E>);

/// Parameters of a [`BwdHopper`] kernel with tensor maps of kind `Map`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdHopperParams<Map: BwdMap = TensorMap> {
    /// Queries: boxes of [`AttnInfo::tile_n`] rows and `AttnInfo::panel` columns.
    pub q: Map,
    /// The gradient of O, with the boxes of `q`.
    pub d_o: Map,
    /// Keys: boxes of 64 rows and `AttnInfo::panel` columns.
    pub k: Map,
    /// Values, with the boxes of `k`.
    pub v: Map,
    /// The gradient of the keys, with the boxes of `k`.
    pub dk: Map,
    /// The gradient of the values, with the boxes of `k`.
    pub dv: Map,
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
    /// Queries per head, at least 1; unused if the tensors are varlen.
    pub q_len: u32,
    /// Keys per head, at least 1; unused if the tensors are varlen.
    pub k_len: u32,
    /// Query heads per key head.
    pub heads_per_kv: u32,
    /// The order of work tiles: of keys and key heads, in groups of [`DqScratch::group`] heads.
    pub order: TileOrder,
    /// See [`FwdParams::alibi`].
    pub alibi: PerHead,
    /// The sequences of varlen tensors. `window.shift` is then unused.
    pub sequences: Map::Sequences,
}

/// The sequences of a varlen [`BwdHopper`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdRagged {
    /// The sequences. `tiles` maps blocks of keys to them; a sequence without keys has one block.
    pub of: BwdSequences,
    /// The mapping from tiles of sums to sequences. The queries of each sequence begin with a tile.
    pub sums: Sequences,
    /// Padding: 0.
    pub reserved: u32,
}

/// Parameters of a [`BwdConvertDq`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdConvertDqParams {
    /// The sums, in tiles of [`ConvertDqInfo::block_rows`] queries.
    pub sums: TileSums,
    /// The gradient of the queries.
    pub dq: Tensor,
    /// Query heads per batch.
    pub heads: FastDiv,
    /// Tiles per head.
    pub tiles: FastDiv,
    /// See [`BwdSequences::cu_seqlens_q`].
    pub cu_seqlens_q: CuSeqlens,
    /// See [`BwdRagged::sums`]; unused if the tensors are not varlen.
    pub sequences: Sequences,
    /// The factor of products of queries and keys.
    pub scale: f32,
}
contract::no_padding! {
    BwdHopperParams<TensorMap> {
        q, d_o, k, v, dk, dv, minus_lse, delta, sums, window, scale_log2, softcap, scale, q_len, k_len,
        heads_per_kv, order, alibi, sequences
    }
    BwdHopperParams<RaggedMap> {
        q, d_o, k, v, dk, dv, minus_lse, delta, sums, window, scale_log2, softcap, scale, q_len, k_len,
        heads_per_kv, order, alibi, sequences
    }
    BwdRagged { of, sums, reserved }
    BwdConvertDqParams { sums, dq, heads, tiles, cu_seqlens_q, sequences, scale }
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
    /// The scratch memory of kernel `kernel` for `heads` query heads (of all batches) with `tiles` tiles of
    /// queries each, of which the longest sequence has `longest`. A key head has `heads_per_kv` query heads.
    ///
    /// Blocks of one head follow each other from tile to tile. If the key blocks of more heads run together,
    /// a block rarely waits for its turn, but the tiles leave the L2 cache sooner. Measured on an H200 with
    /// 16,384 queries in all: a group with 512 tiles of queries is fastest, with a causal mask a group with
    /// 1024.
    pub const fn new(kernel: &AttnInfo, heads: u32, [tiles, longest]: [u32; 2], heads_per_kv: u32) -> Self {
        let tile_bytes = kernel.tile_n as u64 * kernel.tile_columns() as u64 * 4;
        let together = if matches!(kernel.mask, MaskKind::Full) { 512 } else { 1024 };
        let per_kv = longest as u64 * heads_per_kv as u64;
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
    Map: BwdMap,
    const T: usize,
    const C: usize,
    const V: usize,
    const DEPTH: usize,
    const DEPTH_V: usize,
> Kernel for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES, Map, T, C, V, DEPTH, DEPTH_V>
{
    type Params = BwdHopperParams<Map>;
    const TARGET: Target = Target::Exactly(90);
    const THREADS: u32 = 128 * (W as u32 + 1);
    const SMEM_BYTES: usize = {
        assert!(M == 4 * T, "a tile has 64 keys");
        let base_tile = 256 * E::BYTES;
        let kept = 2 * (M * D * base_tile + 1024);
        let stages = 2 * (STAGES * (N * D * base_tile + (N * 64).next_multiple_of(1024)) + 1024);
        // dS twice, tickets and turns.
        kept + stages + 2 * N * M * base_tile + 16 + note_bytes::<Map::Note>(4 * W) + 48
    };
    const PARAM_ALIGN: u32 = TensorMap::ALIGN;
    const BOXES: &'static [[u32; 2]] = &Boxes::<N, D>::ALL;
    fn grid(params: &Self::Params) -> [u32; 3] {
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
    Map: BwdMap,
    const T: usize,
    const C: usize,
    const V: usize,
    const DEPTH: usize,
    const DEPTH_V: usize,
> Line for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES, Map, T, C, V, DEPTH, DEPTH_V>
{
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo {
        contract: Contract::of::<Self>(""),
        pass: Pass::Gradients,
        isa: Isa::Sm90a,
        path: E::PATH,
        schedule: Schedule::Transposed,
        scheduler: TileScheduler::Persistent,
        queries: Map::LAYOUTS.0,
        keys: Map::LAYOUTS.1,
        splits: false,
        dtype: E::DTYPE,
        kv_dtype: E::DTYPE,
        o_dtype: E::DTYPE,
        grad_dtype: Some(E::DTYPE),
        head_dim: DEPTH as u32 * 16,
        head_dim_v: DEPTH_V as u32 * 16,
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
    Map: BwdMap,
    const T: usize,
    const C: usize,
    const V: usize,
    const DEPTH: usize,
    const DEPTH_V: usize,
> AttnKernel for BwdHopper<E, Mask, M, W, N, D, SHARE, STAGES, Map, T, C, V, DEPTH, DEPTH_V>
{
    type Isa = Sm90a;
    type Mask = Mask;
}

impl<E: Element, const W: usize, const SHARE: usize, const D: usize> Kernel for BwdConvertDq<E, W, SHARE, D> {
    type Params = BwdConvertDqParams;
    const THREADS: u32 = 128 * W as u32;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = if W > 2 { 2 } else { 4 };
    fn grid(params: &BwdConvertDqParams) -> [u32; 3] {
        [params.tiles.get() * params.sums.heads(), 1, 1]
    }
}

impl<E, const W: usize, const SHARE: usize, const D: usize> BwdConvertDq<E, W, SHARE, D> {
    /// Whether the sums are the transpose of dQ.
    pub const IS_TRANSPOSED: bool = SHARE * W != D;
    const BLOCK_ROWS: u32 = if Self::IS_TRANSPOSED { SHARE as u32 * 16 } else { 64 };
}

impl<E: Element, const W: usize, const SHARE: usize, const D: usize> Line for BwdConvertDq<E, W, SHARE, D> {
    type Info = ConvertDqInfo;
    const INFO: ConvertDqInfo = ConvertDqInfo {
        contract: Contract::of::<Self>(""),
        dtype: E::DTYPE,
        head_dim: D as u32 * 16,
        stage_rows: if SHARE == D { 128 } else { Self::BLOCK_ROWS },
        block_rows: Self::BLOCK_ROWS,
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
    /// Queries of a tile of sums.
    pub stage_rows: u32,
    /// Queries of a block: a tile's, or half of them.
    pub block_rows: u32,
}

impl ConvertDqInfo {
    /// Whether the kernel rounds the sums of kernel `of`.
    pub fn rounds(&self, of: &AttnInfo) -> bool {
        self.dtype == of.dtype && self.head_dim == of.tile_columns() && self.stage_rows == of.tile_n
    }
}
