//! Masks with block masks, as types.
use crate::{And, BlockMask, MaskKind, MaskMarker, ScoreKinds};
use core::marker::PhantomData;

/// Mask `Mask`, with a [`BlockMask`] that lists the key blocks of each work tile. A kernel takes only listed
/// blocks. In *partial* blocks, the kernel asks `Mask` about each pair. In *full* blocks, it asks about no
/// pair.
#[derive(Clone, Copy, Debug)]
pub struct BlockSparse<Mask>(PhantomData<Mask>);

impl<Mask: MaskMarker> MaskMarker for BlockSparse<Mask> {
    const KIND: MaskKind = Mask::KIND;
    const SCORES: ScoreKinds = Mask::SCORES;
    const LISTED: bool = {
        assert!(!Mask::LISTED, "a block mask has a block mask already: one is supported");
        true
    };
    const READS_WINDOW: bool = Mask::READS_WINDOW;
    type Params = And<Mask::Params, BlockMask>;
    fn block_mask(params: &Self::Params) -> Option<&BlockMask> {
        Some(&params.b)
    }
}
