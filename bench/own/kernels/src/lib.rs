//! Hopper kernels of a caller's masks and scores. Most functions are the template's.
#![no_std]
use kernels_gpu::prelude::*;

#[path = "../../../../tests/own-kernels/src/causal_mask.rs"]
mod causal_mask;
#[path = "../../../../examples/your-own-attention/kernels/src/masks.rs"]
mod masks;
#[path = "../../../../examples/your-own-attention/kernels/src/scores.rs"]
mod scores;

pub use causal_mask::OwnCausal;
pub use masks::*;
pub use scores::*;

// The tiles are those of FerroFlash's kernels with the same mask or score, if the function does not spill.
type D64<E, Mask> = With<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
type D64Causal<E, Mask> = With<FwdHopper<E, Mask, 3, 6, 4, 3, true>>;
type D128<E, Mask> = With<FwdHopper<E, Mask, 2, 8, 8, 2, true>>;
type D128Softcap<E, Mask> = With<FwdHopper<E, Mask, 2, 6, 8, 2, true>>;
type D128Alibi<E, Mask> = With<FwdHopper<E, Mask, 2, 7, 8, 2, true>>;
type D128Natten<E, Mask> = With<FwdHopper<E, Mask, 2, 5, 8, 2, true>>;

entry!(causal_f16_d64: D64Causal<F16, OwnCausal>);
entry!(causal_f16_d64_short: D64<F16, OwnCausal>);
entry!(causal_f16_d128: D128<F16, OwnCausal>);
entry!(softcap_f16_d64: D64<F16, Scored<OwnCausal, Softcap>>);
entry!(softcap_f16_d128: D128Softcap<F16, Scored<OwnCausal, Softcap>>);
entry!(alibi_f16_d64: D64<F16, Scored<OwnCausal, Alibi>>);
entry!(alibi_f16_d128: D128Alibi<F16, Scored<OwnCausal, Alibi>>);
entry!(natten_f16_d64: D64<F16, BlockSparse<Neighbours>>);
entry!(natten_f16_d128: D128Natten<F16, BlockSparse<Neighbours>>);
entry!(natten_bf16_d64: D64<Bf16, BlockSparse<Neighbours>>);
entry!(natten_bf16_d128: D128Natten<Bf16, BlockSparse<Neighbours>>);
entry!(natten_lists_d64: CreateBlockMask<Neighbours, 128, 128>);
entry!(natten_lists_d128: CreateBlockMask<Neighbours, 128, 80>);
entry!(blocks_f16_d64: D64<F16, BlockSparse<Full>>);
entry!(blocks_f16_d128: D128<F16, BlockSparse<Full>>);
entry!(blocks_bf16_d64: D64<Bf16, BlockSparse<Full>>);
entry!(blocks_bf16_d128: D128<Bf16, BlockSparse<Full>>);
