//! Blocks of scores that a score modification changes alike: for example, all keys of a block are farther
//! away than a table of distances reaches. The softmax adds the number once per row, so such a block costs
//! nothing per score.
use crate::softmax::Exponents;

/// A modification of all scores of a block: `score * scale + add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockBias {
    /// Factor of each score.
    pub scale: f32,
    /// Added to each scaled score.
    pub add: f32,
}

impl BlockBias {
    /// No modification.
    pub const NONE: BlockBias = BlockBias { scale: 1.0, add: 0.0 };

    /// The exponents of 2 of the block's scores. `scale_log2` converts modified scores to exponents.
    #[inline(always)]
    pub fn exponents(self, scale_log2: f32) -> Exponents {
        Exponents { scale_log2: scale_log2 * self.scale, add: scale_log2 * self.add }
    }
}
