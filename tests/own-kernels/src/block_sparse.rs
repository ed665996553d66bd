//! Masks with block masks: documents, windows, neighbours in an image, and lists of any blocks.
use crate::{Large, OwnAlibi, Small};
use kernels_gpu::prelude::*;

/// Causal attention within documents. The positions of a document need not be contiguous.
#[derive(Clone, Copy)]
pub struct Documents(Integers);

impl MaskMarker for Documents {
    /// The document of each position.
    type Params = Integers;
}

impl MaskMod for Documents {
    const LEFT: bool = false;
    fn load(of: &Integers, _: &Sequence) -> Self {
        Documents(*of)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let of = GlobalInts::new(&self.0);
        of.nearest(p as u32) == of.nearest(k as u32)
    }
}

/// A window: a query sees its own key and the keys before it. Head `h` sees `keys << h` keys.
#[derive(Clone, Copy)]
pub struct HeadWindow(i32);

impl MaskMarker for HeadWindow {
    /// Keys of head 0.
    type Params = u64;
}

impl MaskMod for HeadWindow {
    const HOLES: bool = false;
    fn load(keys: &u64, of: &Sequence) -> Self {
        HeadWindow((*keys as i32) << of.head)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        p + 1 - self.0..p + 1
    }
}

/// Pixels of an image, row by row: a query sees the pixels at most `radius` rows and columns away (NATTEN).
#[derive(Clone, Copy)]
pub struct Neighbours(NeighboursParams);

/// Parameters of [`Neighbours`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NeighboursParams {
    /// Pixels of a row.
    pub width: FastDiv,
    /// Rows and columns.
    pub radius: u32,
}
no_padding! { NeighboursParams { width, radius } }

impl MaskMarker for Neighbours {
    type Params = NeighboursParams;
}

impl MaskMod for Neighbours {
    fn load(params: &NeighboursParams, _: &Sequence) -> Self {
        Neighbours(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        let reach = (self.0.radius * (self.0.width.get() + 1)) as i32;
        p - reach..p + reach + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let [query, key] = [p, k].map(|at| self.0.width.div_rem(at as u32));
        query.0.abs_diff(key.0) <= self.0.radius && query.1.abs_diff(key.1) <= self.0.radius
    }
}

/// Tiles of 32 queries and 64 keys, which two warps share, in three stages.
type Shared<Mask> = Fwd<F16, Mask, 2, 2, 2, 2, 4, 4, 3>;
/// Tiles of 64 queries and 32 keys, in one stage.
type OneStage<Mask> = Fwd<F16, Mask, 4, 2, 1, 2, 4, 4, 1>;
/// Hopper's tiles of 128 queries and 128 keys.
type Hopper<Mask> = FwdHopper<F16, Mask, 2, 8, 4, 3, true>;
/// Hopper's tiles of 128 queries and 64 keys, one after the other.
type HopperWide<Mask> = FwdHopperWide<F16, Mask, 2, 4, 4, 3, true>;

entry!(documents: With<Large<Documents>>);
entry!(sparse_documents: With<Large<BlockSparse<Documents>>>);
entry!(sparse_documents_varlen: With<Varlen<Large<BlockSparse<Documents>>>>);
entry!(sparse_documents_paged: With<Paged<Large<BlockSparse<Documents>>>>);
entry!(sparse_window: With<Small<BlockSparse<HeadWindow>>>);
entry!(sparse_neighbours: With<Small<BlockSparse<Neighbours>>>);
entry!(full: With<Large<Full>>);
entry!(sparse_full: With<Large<BlockSparse<Full>>>);
entry!(sparse_full_shared: With<Shared<BlockSparse<Full>>>);
entry!(sparse_full_one_stage: With<OneStage<BlockSparse<Full>>>);
entry!(sparse_full_split: With<Split<Large<BlockSparse<Full>>>>);
entry!(sparse_alibi: With<Small<Scored<BlockSparse<Causal>, OwnAlibi>>>);
entry!(create_documents: CreateBlockMask<Documents, 128, 64>);
entry!(create_window: CreateBlockMask<HeadWindow, 128, 32>);
entry!(create_local: CreateBlockMask<Local, 128, 64>);
entry!(neighbours_spilled: With<Large<Neighbours>>);
entry!(create_neighbours: CreateBlockMask<Neighbours, 128, 32>);
entry!(sparse_full_hopper: With<Hopper<BlockSparse<Full>>>);
entry!(sparse_full_hopper_wide: With<HopperWide<BlockSparse<Full>>>);
