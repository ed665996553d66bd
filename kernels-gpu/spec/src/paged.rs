//! Kernels for prefill on a KV cache: many queries per sequence, with varlen queries or equal counts.
use crate::forward::made_of;
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` on a [`Cache`], for chunked prefill, whole prompts, and batches of both.
pub struct Paged<K>(PhantomData<K>);

made_of!(
    Paged<K>: <K::Isa as IsaMarker>::Paged<K::Scales>,
    |p: &<K::Isa as IsaMarker>::Paged<K::Scales>| p.blocks(),
    { queries: Queries::Any, keys: K::INFO.keys.of_cache(), kv_dtype: K::INFO.dtype_in_cache() }
);

/// Parameters of a [`Paged`] kernel, with scales `S`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedParams<S = ()> {
    /// The forward parameters. `k` and `v` are unused. A sequence's last query has the position of its last
    /// key plus `window.shift`. For a mask without bound, `shift` is so large that every query sees all
    /// keys.
    pub forward: FwdParams,
    /// Keys and values.
    pub cache: Cache,
    /// [`VarlenParams::cu_seqlens_q`], if `forward` has one batch; empty if each batch is a sequence.
    pub cu_seqlens_q: Integers,
    /// Number of keys of each sequence.
    pub lengths: Integers,
    /// The mapping from query blocks to sequences, for varlen queries.
    pub sequences: Sequences,
    /// Maximum number of keys per sequence.
    pub max_keys: u32,
    /// Scales of keys and of values.
    pub scales: S,
    /// The layout of values, for kernels whose keys and values differ in their maxima of columns. Other
    /// kernels read values as `cache` says.
    pub values: Cache,
}

/// Parameters of a [`Paged`] Hopper kernel, with scales `S`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperPagedParams<S = ()> {
    /// The forward parameters, with one batch of all sequences' queries. `sequences` assigns the query blocks
    /// of its heads to sequences. No sequence has more than `k_len` keys. The position of the last query is
    /// as in [`PagedParams::forward`]. If batches are contiguous, each batch's LSE follows the rows of the
    /// previous batch.
    pub forward: HopperParams<RaggedMap, PagedMap>,
    /// The block table and the page size.
    pub cache: Cache,
    /// See [`VarlenParams::cu_seqlens_q`]; empty if each sequence has `queries` queries.
    pub cu_seqlens_q: Integers,
    /// Number of keys of each sequence.
    pub lengths: Integers,
    /// The mapping from query blocks to sequences.
    pub sequences: Sequences,
    /// Number of queries per sequence, if `cu_seqlens_q` is empty.
    pub queries: FastDiv,
    /// The boxes of K and V.
    pub boxes: PageBoxes,
    /// The tiles of a mixed batch: [`NumberTilesParams::begins`]. If empty, `sequences` numbers the tiles.
    pub begins: Integers,
    /// Number of rows of Q that all sequences share: `queries`, or 0 if each sequence has rows of its own.
    /// Sequences never share rows of O and LSE.
    pub shared_queries: u32,
    /// Padding to a multiple of 64 bytes: 0.
    pub reserved: [u32; 11],
    /// Scales of keys and of values.
    pub scales: S,
}
contract::no_padding! {
    PagedParams { forward, cache, cu_seqlens_q, lengths, sequences, max_keys, scales, values }
    PagedParams<[PerHead; 2]> { forward, cache, cu_seqlens_q, lengths, sequences, max_keys, scales, values }
    HopperPagedParams {
        forward, cache, cu_seqlens_q, lengths, sequences, queries, boxes, begins, shared_queries, reserved,
        scales
    }
    HopperPagedParams<[PerHead; 2]> {
        forward, cache, cu_seqlens_q, lengths, sequences, queries, boxes, begins, shared_queries, reserved,
        scales
    }
}

no_variant!(HopperPagedParams<S>, S);

impl<S> AsRef<HopperParams<RaggedMap, PagedMap>> for HopperPagedParams<S> {
    #[inline(always)]
    fn as_ref(&self) -> &HopperParams<RaggedMap, PagedMap> {
        &self.forward
    }
}

impl<S: Copy> Scheduled for PagedParams<S> {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}

impl<S: Copy> Scheduled for HopperPagedParams<S> {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}

impl CacheScales for () {
    type Hopper = HopperPagedParams;
}
impl CacheScales for [PerHead; 2] {
    type Hopper = HopperPagedParams<[PerHead; 2]>;
}

impl IsaMarker for Sm80 {
    const KIND: Isa = Isa::Sm80;
    type OnVarlen = VarlenParams;
    type Paged<S: CacheScales> = PagedParams<S>;
}
impl IsaMarker for Sm90a {
    const KIND: Isa = Isa::Sm90a;
    type OnVarlen = VarlenParams<HopperParams<RaggedMap>>;
    type Paged<S: CacheScales> = S::Hopper;
}
