//! Masks whose kernels keep the largest score of each row, as types.
use crate::{And, BlockMask, Integers, Lse, MaskKind, MaskMarker, ScoreKinds};
use core::marker::PhantomData;

/// Mask `Mask`, for a Hopper kernel that writes the largest score of each row. Hopper's softmax searches for
/// a maximum only if it must, so that such a kernel takes one more comparison per score. No other kernel
/// takes this mask: portable softmaxes know their maxima.
#[derive(Clone, Copy, Debug)]
pub struct Maxima<Mask>(PhantomData<Mask>);

/// Parameters of [`Maxima`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaximaParams {
    /// The largest score of each row, as [`crate::FwdParams::max_logits`] describes it.
    pub rows: Lse,
}
contract::no_padding! { MaximaParams { rows } }

impl<Mask: MaskMarker> MaskMarker for Maxima<Mask> {
    const KIND: MaskKind = Mask::KIND;
    const SCORES: ScoreKinds = Mask::SCORES.and(ScoreKinds::MAXIMA);
    const LISTED: bool = Mask::LISTED;
    const READS_WINDOW: bool = Mask::READS_WINDOW;
    const STAGED_BYTES: usize = {
        assert!(Mask::STAGED_BYTES == 0, "a kernel with `TmaBias` has no registers for maxima");
        0
    };
    type Params = And<Mask::Params, MaximaParams>;
    fn block_mask(params: &Self::Params) -> Option<&BlockMask> {
        Mask::block_mask(&params.a)
    }
    fn table(params: &Self::Params) -> Option<Integers> {
        Mask::table(&params.a)
    }
}
