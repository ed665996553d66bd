//! Kernels over a cache in pages: many queries per sequence, varlen or as many for each.
use crate::forward::made_of;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` over a [`Cache`]: chunks of prompts, whole ones, and batches of both.
pub struct Paged<K>(PhantomData<K>);

made_of!(
    Paged<K>: <K::Isa as IsaMarker>::Paged, |p: &<K::Isa as IsaMarker>::Paged| p.blocks(),
    { queries: Queries::Any, keys: Keys::Cache(PageKind::Rows) }
);

/// What a [`Paged`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedParams {
    /// The forward. Its `k` and `v` say nothing; a sequence's last query is at its last key, and
    /// `window.shift` further on: so far that it sees all, where the mask has no bound.
    pub forward: FwdParams,
    /// Keys and values.
    pub cache: Cache,
    /// As [`VarlenParams::cu_seqlens_q`], with one batch in `forward`; none where each batch is a sequence.
    pub cu_seqlens_q: Integers,
    /// Keys of each sequence.
    pub lengths: Integers,
    /// Which query block is whose, where sequences are packed.
    pub sequences: Sequences,
    /// No sequence has more keys.
    pub max_keys: u32,
}

/// What a [`Paged`] Hopper kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperPagedParams {
    /// The forward, of one batch whose queries are those of all sequences. `sequences` deals out the query
    /// blocks of its heads; no sequence has more keys than `k_len`. A sequence's last query is at its last
    /// key, and `window.shift` further on, as in [`PagedParams::forward`]; of batches that lie one behind the
    /// other, the log-sum-exp's next is as far as it would be beyond the rows of the one before.
    pub forward: HopperParams<RaggedMap, PagedMap>,
    /// What pages are whose, and how large they are.
    pub cache: Cache,
    /// As [`VarlenParams::cu_seqlens_q`]; none where each sequence has `queries`.
    pub cu_seqlens_q: Integers,
    /// Keys of each sequence.
    pub lengths: Integers,
    /// Which query block is whose.
    pub sequences: Sequences,
    /// Queries of each sequence, where these are not told.
    pub queries: FastDiv,
    /// Of K and V.
    pub boxes: PageBoxes,
}

impl AsRef<HopperParams<RaggedMap, PagedMap>> for HopperPagedParams {
    #[inline(always)]
    fn as_ref(&self) -> &HopperParams<RaggedMap, PagedMap> {
        &self.forward
    }
}

impl Scheduled for PagedParams {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}

impl Scheduled for HopperPagedParams {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}
