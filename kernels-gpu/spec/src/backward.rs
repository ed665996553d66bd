//! Backward kernels: gradients of Q, K and V (FlashAttention-2, Dao 2023, algorithm 2) in three launches.
//! [`BwdDelta`] prepares two numbers per query. [`BwdDkDv`] computes dK and dV of a block of keys. [`BwdDq`]
//! computes dQ of a block of queries. The last two compute the scores again, so no two blocks add to the same
//! row, and a repeated launch gives identical bits. A fourth launch computes gradients of sinks
//! ([`BwdDsinks`]). `backward_scores.rs` has the gradients of what a caller adds to scores.
use crate::forward::{oldest_with, tile_bytes};
use crate::*;
use core::marker::PhantomData;

/// Computes, for each query, minus its LSE in base 2, and delta, the sum of dO times O. Four lanes have a row
/// of `DV` base tiles.
pub struct BwdDelta<E, const DV: usize>(PhantomData<E>);

/// Gradients of `M` base tiles of keys and of their values, over stages of queries. `TEAMS` split groups
/// share the keys, `W` base tiles per warp. Each group computes P^T and dS^T of its `N` base tiles of a
/// stage's queries, and has its share of the columns of both gradients: `SHARE` of the `D` base tiles of dK,
/// and `SHARE_V` of the `DV` base tiles of dV. The groups exchange P^T and dS^T. The first `HELD` k-steps of
/// K and V stay in registers.
pub struct BwdDkDv<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const TEAMS: usize,
    const D: usize,
    const SHARE: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize = D,
    const SHARE_V: usize = SHARE,
>(PhantomData<(E, Mask)>);

/// Gradients of `M` base tiles of queries, `W` per warp, over stages of `N` base tiles of keys. The first
/// `HELD` k-steps of Q and dO stay in registers. V and dO have `DV` base tiles of columns.
pub struct BwdDq<
    E,
    Mask,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const STAGES: usize,
    const DV: usize = D,
>(PhantomData<(E, Mask)>);

/// Rows of a [`BwdDelta`] block: eight per warp.
pub const DELTA_ROWS: u32 = 32;

/// The gradient of the sink of a query head: a block per head.
pub struct BwdDsinks;

/// Warps of a [`BwdDsinks`] block.
pub const DSINKS_WARPS: usize = 8;

/// The problem, as [`BwdDkDv`] and [`BwdDq`] see it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdParams {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// The gradient of O.
    pub d_o: Tensor,
    /// Minus the LSE of each query, base 2; minus infinity for a query that sees no key.
    pub minus_lse: PaddedVector,
    /// The sum of dO times O of each query, minus the gradient of its LSE. It has the rows of `minus_lse`,
    /// which are at least the padded rows of `q`.
    pub delta: PaddedVector,
    /// As in [`FwdParams::window`].
    pub window: Window,
    /// As in [`FwdParams::scale_log2`].
    pub scale_log2: f32,
    /// As in [`FwdParams::softcap`].
    pub softcap: f32,
    /// The factor of products of queries and keys.
    pub scale: f32,
    /// Query heads per key head.
    pub heads_per_kv: u32,
    /// The order of work tiles: of queries and query heads, or of keys and key heads.
    pub order: TileOrder,
    /// As in [`FwdParams::alibi`].
    pub alibi: PerHead,
    /// The sequences of varlen tensors, if the tensors are varlen. `window.shift` is then unused.
    pub sequences: BwdSequences,
}

/// The rows of varlen sequences in a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CuSeqlens {
    /// Offsets of the sequences, as in [`VarlenParams::cu_seqlens_q`].
    pub offsets: Integers,
    /// Rows of the tensor.
    pub rows: u32,
    /// Rows of the longest sequence. Further rows of a sequence count for nothing.
    pub longest: u32,
}

/// The sequences of varlen tensors, whose lengths only the device knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdSequences {
    /// The sequences' queries; no offsets if the tensors are batches of equal lengths.
    pub cu_seqlens_q: CuSeqlens,
    /// The sequences' keys.
    pub cu_seqlens_k: CuSeqlens,
    /// As in [`VarlenParams::seqused_k`].
    pub seqused_k: Integers,
    /// The mapping from blocks of [`PaddedVector::ROWS`] rows of -LSE and delta to sequences. The rows of
    /// each sequence begin with a block.
    pub padded: Sequences,
    /// The mapping from the kernel's work tiles to sequences.
    pub tiles: Sequences,
    /// As in [`VarlenParams::bottom_right`].
    pub bottom_right: u32,
    /// Padding: 0.
    pub reserved: u32,
}

impl BwdSequences {
    /// No sequences: batches of equal lengths.
    pub const NONE: Self = {
        let ([padded, tiles], [bottom_right, reserved]) = ([Sequences::NONE; 2], [0; 2]);
        let [cu_seqlens_q, cu_seqlens_k] = [CuSeqlens { offsets: Integers::NONE, rows: 0, longest: 0 }; 2];
        let seqused_k = Integers::NONE;
        BwdSequences { cu_seqlens_q, cu_seqlens_k, seqused_k, padded, tiles, bottom_right, reserved }
    };
}

/// Parameters of a [`BwdDkDv`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdDkDvParams {
    /// The problem.
    pub problem: BwdParams,
    /// The gradient of the keys.
    pub dk: Tensor,
    /// The gradient of the values.
    pub dv: Tensor,
}

/// Parameters of a [`BwdDq`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdDqParams {
    /// The problem.
    pub problem: BwdParams,
    /// The gradient of the queries.
    pub dq: Tensor,
}

/// Parameters of a [`BwdDelta`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdDeltaParams {
    /// The forward's output.
    pub o: Tensor,
    /// The gradient of O.
    pub d_o: Tensor,
    /// LSE of each row, natural logarithm. `base` is not 0.
    pub lse: Lse,
    /// The gradient of the LSE; `base` is 0 if there is none.
    pub d_lse: Lse,
    /// See [`BwdParams::minus_lse`].
    pub minus_lse: PaddedVector,
    /// See [`BwdParams::delta`].
    pub delta: PaddedVector,
    /// See [`BwdParams::sequences`].
    pub sequences: BwdSequences,
    /// Words that become 0, at most four per value of `delta`: [`DqScratch::counters`] for a later kernel.
    pub cleared: Integers,
    /// Query heads per batch.
    pub heads: FastDiv,
    /// Blocks per head: its padded rows in blocks of [`DELTA_ROWS`].
    pub blocks: FastDiv,
}

/// Parameters of [`BwdDsinks`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BwdDsinksParams {
    /// See [`BwdParams::minus_lse`]: the LSE with sinks, heads batch by batch.
    pub minus_lse: PaddedVector,
    /// See [`BwdParams::delta`].
    pub delta: PaddedVector,
    /// The sinks of the forward.
    pub sinks: SinkParams,
    /// The gradients, one f32 per query head.
    pub dsinks: Integers,
}
contract::no_padding! {
    BwdParams {
        q, k, v, d_o, minus_lse, delta, window, scale_log2, softcap, scale, heads_per_kv, order, alibi,
        sequences
    }
    BwdDkDvParams { problem, dk, dv }
    BwdDqParams { problem, dq }
    BwdDeltaParams { o, d_o, lse, d_lse, minus_lse, delta, sequences, cleared, heads, blocks }
    CuSeqlens { offsets, rows, longest }
    BwdSequences { cu_seqlens_q, cu_seqlens_k, seqused_k, padded, tiles, bottom_right, reserved }
    BwdDsinksParams { minus_lse, delta, sinks, dsinks }
}

impl<E: Element, const DV: usize> Kernel for BwdDelta<E, DV> {
    type Params = BwdDeltaParams;
    const THREADS: u32 = DELTA_ROWS * 4;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 8;
    fn grid(params: &BwdDeltaParams) -> [u32; 3] {
        [params.blocks.get() * params.delta.heads, 1, 1]
    }
}

impl<E: Element, const DV: usize> Line for BwdDelta<E, DV> {
    type Info = DeltaInfo;
    const INFO: DeltaInfo =
        DeltaInfo { contract: Contract::of::<Self>(""), dtype: E::DTYPE, head_dim: DV as u32 * 16 };
}

/// A compiled [`BwdDelta`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// Dtype of O.
    pub dtype: DType,
    /// Largest number of columns of O.
    pub head_dim: u32,
}

impl Kernel for BwdDsinks {
    type Params = BwdDsinksParams;
    const THREADS: u32 = DSINKS_WARPS as u32 * 32;
    /// A sum per warp.
    const SMEM_BYTES: usize = DSINKS_WARPS * 4;
    fn grid(params: &BwdDsinksParams) -> [u32; 3] {
        [params.dsinks.count(), 1, 1]
    }
}

impl Line for BwdDsinks {
    type Info = DsinksInfo;
    const INFO: DsinksInfo = DsinksInfo { contract: Contract::of::<Self>("") };
}

/// A compiled [`BwdDsinks`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsinksInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
}

/// Implements [`AttnKernel`] for the kernels of one pass.
macro_rules! backward {
    ($config:ident<$($c:ident),*>: $params:ident, $pass:ident, $schedule:ident, threads $threads:expr,
        rows of a stage $rows:expr, stages $stages:expr, smem tiles $tiles:expr, bytes $bytes:expr,
        blocks |$of:ident| $blocks:expr) => {
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Kernel for $config<E, Mask, $($c),*> {
            type Params = $params;
            const TARGET: Target = oldest_with(Self::SMEM_BYTES);
            const THREADS: u32 = {
                assert!(M % W == 0, "the warps' row tiles must make up the block's");
                ($threads) as u32
            };
            const SMEM_BYTES: usize = tile_bytes::<E>() * (D + DV) * ($tiles) + $bytes;
            fn grid($of: &$params) -> [u32; 3] {
                [$blocks, 1, 1]
            }
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> Line for $config<E, Mask, $($c),*> {
            type Info = AttnInfo;
            const INFO: AttnInfo = AttnInfo {
                contract: Contract::of::<Self>(""),
                pass: Pass::$pass,
                isa: Isa::Sm80,
                path: E::PATH,
                schedule: Schedule::$schedule,
                scheduler: TileScheduler::SingleTile,
                queries: Queries::Batched,
                keys: Keys::Batched,
                splits: false,
                dtype: E::DTYPE,
                kv_dtype: E::DTYPE,
                o_dtype: E::DTYPE,
                grad_dtype: Some(E::DTYPE),
                head_dim: D as u32 * 16,
                head_dim_v: DV as u32 * 16,
                mask: Mask::KIND,
                scores: Mask::SCORES,
                tile_m: M as u32 * 16,
                tile_n: ($rows) as u32 * 16,
                stages: ($stages) as u32,
            };
        }
        impl<E: Element, Mask: MaskMarker, $(const $c: usize),*> AttnKernel for $config<E, Mask, $($c),*> {
            type Isa = Sm80;
            type Mask = Mask;
        }
    };
}
backward!(
    BwdDkDv<M, W, N, TEAMS, D, SHARE, HELD, STAGES, DV, SHARE_V>: BwdDkDvParams, DkDv, Transposed,
    threads M / W * TEAMS * 32, rows of a stage N * TEAMS, stages STAGES, smem tiles M + STAGES * N * TEAMS,
    bytes {
        assert!(SHARE * TEAMS == D && SHARE_V * TEAMS == DV, "the groups' columns must be all columns");
        // Two values per query lie beside a stage, whose size is a multiple of a tile's alignment.
        let values = (2 * N * TEAMS * 64).next_multiple_of(1024);
        // P^T and dS^T of each warp, which it passes to the other groups.
        STAGES * values + if TEAMS == 1 { 0 } else { M * TEAMS * 2 * N * 512 }
    },
    blocks |p| p.problem.order.tiles
);
backward!(
    BwdDq<M, W, N, D, HELD, STAGES, DV>: BwdDqParams, Dq, Sequential,
    threads M / W * 32, rows of a stage N, stages STAGES, smem tiles M + STAGES * N, bytes 0,
    blocks |p| p.problem.order.tiles
);
pub(crate) use backward;
