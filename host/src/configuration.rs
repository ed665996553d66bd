//! The types that kernels of your own consist of, and the descriptions of compiled kernels.
//!
//! A kernel's configuration is a type, such as `With<Fwd<F16, Scored<Causal, Sink>, 8, 2, 1, 4, 4, 4, 2>>`.
//! The crate of your kernels gets the same types from `kernels_gpu::spec`.
//!
//! | types | purpose |
//! |---|---|
//! | [`F16`], [`Bf16`], [`E4m3`], [`Int8`] | elements of tensors and caches |
//! | [`Full`], [`Causal`], [`Local`], [`Windowed`], [`Prefix`], [`Chunked`], [`Bits`], [`BlockSparse`] | masks |
//! | [`Scored`] with [`Sink`] or [`Bias`], [`CausalAlibi`] | scores behind a mask |
//! | [`MaskMarker`], [`ScoreMarker`] | traits of your own masks and scores |
//! | [`And`], [`SinkParams`], [`BiasParams`], [`Plain`], .. | parameters of masks and scores |
//! | [`Tensor`], [`Lse`], [`Integers`], [`PerHead`], [`Head`], [`FastDiv`] | what parameters describe |
//! | [`Fwd`], [`FwdOverlap`], [`FwdWide`], [`FwdHopper`], [`FwdHopperWide`], [`Decode`], [`Mla`] | schedules |
//! | [`Split`], [`Varlen`], [`Paged`], [`With`] | layers around a schedule |
//! | [`BwdDq`], [`BwdDkDv`], [`BwdTable`], [`BwdHopper`] | kernels of gradients |
//! | [`AttnKernel`], [`Entry`], [`AttnInfo`], [`Contract`], [`MaskKind`], [`ScoreKinds`] | a kernel as a trait and as a value |
pub use spec::{
    And, AttnInfo, AttnKernel, Bf16, Bias, BiasParams, Bits, BitsParams, BlockMask, BlockSparse, BwdDkDv,
    BwdDq, BwdHopper, BwdTable, Causal, CausalAlibi, Chunked, ChunkedParams, Contract, CreateBlockMask,
    CreatesBlockMask, DType, Decode, E4m3, Element, Entry, F16, FastDiv, Full, Fwd, FwdDequant, FwdHopper,
    FwdHopperDequant, FwdHopperWide, FwdOverlap, FwdWide, Head, Int8, Integers, Kernel, Local, Lse,
    ManyQueries, MaskKind, MaskMarker, Mla, MlaHopper, MlaHopperDequant, Paged, PerHead, Persistent, Plain,
    Prefix, PrefixParams, RaggedMap, Rows, ScoreKinds, ScoreMarker, Scored, Sink, SinkParams, Split, Target,
    Tensor, Tiles, TmaBias, Varlen, Window, Windowed, With,
};
