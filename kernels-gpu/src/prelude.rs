//! Names for crates that define masks and scores: `use kernels_gpu::prelude::*`.
pub use crate::entry;
pub use crate::rows::Sequence;
pub use crate::variant::mask::MaskMod;
pub use crate::variant::score::ScoreMod;
pub use core::ops::Range;
pub use cuda_std::math::{ex2, fma, lg2, rcp, rsqrt, sqrt};
pub use spec::{
    And, Bf16, Bias, Bits, BlockMask, BlockSparse, BwdDkDv, BwdDq, BwdTable, Causal, Chunked,
    CreateBlockMask, Decode, E4m3, F16, F32, FastDiv, Full, Fwd, FwdDequant, FwdHopper, FwdHopperHalves,
    FwdHopperWide, FwdOverlap, FwdSpecialised, FwdWide, Integers, Local, MaskMarker, Native, Paged, Prefix,
    Rows, ScoreKinds, ScoreMarker, Scored, Sink, Split, Tiles, Varlen, With, no_padding,
};
pub use tile::global::GlobalInts;
