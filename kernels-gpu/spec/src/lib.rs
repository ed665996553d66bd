//! FerroFlash's kernel configurations, for both sides of a launch. Host and device both compile this crate,
//! and share nothing else.
//!
//! - [`Kernel`]: one type states threads, shared memory, parameters and grid of a kernel.
//! - [`FwdParams`]: parameters of a forward kernel, with [`Tensor`], [`Window`] and [`TileOrder`].
//! - [`Fwd`], [`FwdOverlap`], [`FwdHopper`], ..: configurations. A configuration *is* a type. [`Split`],
//!   [`Varlen`] and [`Paged`] turn a configuration into other kernels.
//! - [`MaskMarker`], [`ScoreMarker`]: masks and score modifications. [`With`]: kernels whose masks or scores
//!   have parameters.
//! - [`Decode`], [`DecodeParams`]: few queries on a long paged KV cache, with [`DecodeOrder`]. [`Mla`]:
//!   decode on a latent cache.
//! - [`for_each_kernel!`] and [`KERNELS`]: the one table, list by list. An attention kernel's line is an
//!   [`AttnInfo`], whatever its family.
//!
//! Sizes of tiles are in 16x16 base tiles, sizes of tensors in elements, strides in bytes.
#![no_std]
// `Head::new` is an unsafe function, so this crate cannot `forbid` the word. No block is `unsafe`.
#![deny(unsafe_code)]

mod and;
mod append;
mod backward;
mod backward_scores;
mod block_mask;
mod block_sparse;
mod cache;
mod combine;
mod create_block_mask;
mod decode;
mod dequant;
mod eight_bits;
mod forward;
mod fp8_sequences;
#[allow(unsafe_code)]
mod head;
mod head_maxima;
mod hopper;
mod hopper_backward;
mod hopper_dequant;
mod hopper_fp8;
mod info;
mod int8_pages;
mod kernels;
mod lineage;
mod lines;
mod mask;
mod maxima;
mod merge;
mod mixed;
mod mla;
mod number_tiles;
mod order;
mod others;
mod paged;
mod paged_map;
mod precision;
mod rotary;
mod score_kinds;
mod scores;
mod solves;
mod split;
mod sum_heads;
mod table;
mod training;
mod used_queries;
mod variant;
mod varlen;

pub use and::And;
pub use append::{
    APPEND_COLUMNS, Append, AppendCopy, AppendInfo, AppendInt8, AppendParams, AppendScaled, SCALED_PAIRS,
    WARP_PARTS, row_parts,
};
pub use backward::{
    BwdDelta, BwdDeltaParams, BwdDkDv, BwdDkDvParams, BwdDq, BwdDqParams, BwdDsinks, BwdDsinksParams,
    BwdParams, BwdSequences, CuSeqlens, DELTA_ROWS, DSINKS_WARPS, DeltaInfo, DsinksInfo,
};
pub use backward_scores::{BiasTiles, BwdDbias, BwdDbiasParams, BwdTable, BwdTableParams, TABLE_ENTRIES};
pub use block_mask::BlockMask;
pub use block_sparse::BlockSparse;
pub use cache::{Cache, CacheScales, PageKind, PerHead, Slots};
pub use combine::{Combine, CombineInfo, CombineParams, SplitKernels};
pub use contract::no_padding;
pub use contract::{
    Bf16, Contract, Counters, DType, Dependent, E4m3, E4m3Scaled, Element, F16, F32, FastDiv, Int8, Integers,
    Kernel, Native, NoteWords, PaddedVector, PartPairs, Partials, Path, Plain, RaggedMap, RowParts,
    RowValues, Scalar, Target, Tensor, TensorMap, TilePartials, TileSums, Vector as Lse, note_bytes,
};
pub use create_block_mask::{CreateBlockMask, CreateBlockMaskParams, CreatesBlockMask};
pub use decode::params::{DecodeOrder, DecodeParams, LEAST_KEYS, MAX_SEQUENCES, SEARCH_WORDS, varlen_cache};
pub use decode::{Decode, DecodeCombine, PageMarker, Rows, Tiles};
pub use dequant::FwdDequant;
pub use eight_bits::{
    FwdInt8F16, FwdInt8Fp8, QuantiseInfo, QuantiseKv, QuantiseParams, image_bytes, keys_image_bytes,
};
pub use forward::params::{FwdParams, Window};
pub use forward::{Forward, Fwd, FwdOverlap, FwdSpecialised, FwdWide, Persistent, Statistics};
pub use fp8_sequences::Fp8Sequences;
pub use head::Head;
pub use head_maxima::{HeadMaxima, HeadMaximaParams, MAXIMA_WARPS};
pub use hopper::{FwdHopper, FwdHopperHalves, FwdHopperWide, HopperParams};
pub use hopper_backward::{
    BwdConvertDq, BwdConvertDqParams, BwdHopper, BwdHopperParams, BwdMap, BwdRagged, ConvertDqInfo, DqScratch,
};
pub use hopper_dequant::FwdHopperDequant;
pub use hopper_fp8::{
    FP8_SHARES, Fp8Params, FwdHopperFp8, LayFp8, LayFp8Pages, LayFp8PagesParams, LayFp8Params, RoundFp8,
    RoundFp8Params, fp8_box_columns,
};
pub use info::{
    AttnInfo, Entry, Isa, IsaMarker, Keys, Line, Pass, Queries, Schedule, Sm80, Sm90a, TileScheduler,
};
pub use int8_pages::{LayInt8Pages, LayInt8PagesParams, values_image_bytes};
pub use kernels::{
    KERNELS, attention, beside, combine_of, family, feature_of, head_dims, is_lineage, kernels, lay_of,
    of_class, plain, quantise_of,
};
pub use lineage::LINEAGE;
pub use mask::{
    Bits, BitsParams, Causal, Chunked, ChunkedParams, Full, Local, MaskKind, MaskMarker, Prefix,
    PrefixParams, Windowed,
};
pub use maxima::{Maxima, MaximaParams};
pub use merge::{MERGE_COLUMNS, Merge, MergeInfo, MergeParams, MergeState, States};
pub use mixed::{FewCombine, FewParams, FewQueries, ManyParams, ManyQueries};
pub use mla::Mla;
pub use mla::dequant::MlaDequant;
pub use mla::hopper::{MlaHopper, MlaHopperParams};
pub use mla::hopper_dequant::MlaHopperDequant;
pub use mla::sparse::{Sparse, SparseParams};
pub use number_tiles::{NumberTiles, NumberTilesParams};
pub use order::{OwnTiles, Scheduled, TileOrder, TileRounds, WorkTile};
pub use others::{APPENDS, COMBINES, EXTRAS, MERGES, QUANTISES, STATISTICS};
pub use paged::{HopperPagedParams, Paged, PagedParams};
pub use paged_map::{PageBoxes, PagedMap};
#[doc(hidden)]
pub use pastey;
pub use precision::Precision;
pub use rotary::{Angles, RotaryAppend, RotaryAppendParams};
pub use score_kinds::ScoreKinds;
pub use scores::{
    Bias, BiasParams, CausalAlibi, ScoreMarker, Scored, Sink, SinkParams, TmaBias, TmaBiasParams,
};
pub use solves::{Class, ProblemKind};
pub use split::{Split, SplitParams};
pub use sum_heads::{BwdSumHeads, BwdSumHeadsParams, SumHeadsInfo};
pub use table::ATTENTION;
pub use training::{CONVERT_DQS, DELTAS, DSINKS, GRADIENTS, SUM_HEADS};
pub use used_queries::{DIVIDED_INTEGERS, DividedSequences, ExtraInfo, UsedQueries, UsedQueriesParams};
pub use variant::{AttnKernel, HasVariant, VariantParams, With, WithParams, has_params};
pub use varlen::{Sequences, Varlen, VarlenParams};
