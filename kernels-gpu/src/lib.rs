//! FerroFlash's attention kernels. The kernels read like the papers: they contain no `asm!`, byte offset,
//! barrier phase or thread count.
//!
//! - [`mainloop`]: FlashAttention-2's order of work. [`forward`] runs it in blocks whose warps all copy and
//!   compute; [`specialised`] runs it in blocks with a producer warp.
//! - [`overlap`]: computes the next block's scores during this block's softmax. [`wide`]: two warps share the
//!   columns of a head dim that is too large for one.
//! - [`split`]: several blocks share a tile's keys, and a combine kernel merges their results.
//! - [`decode`]: few queries on a long paged KV cache. [`lengths`]: clamps integers that only the device
//!   knows.
//! - [`varlen`]: varlen tensors. [`paged`]: prefill on a paged KV cache.
//! - [`hopper`]: forward kernels with the instructions that only sm_90 has.
//! - [`partial`]: merges partial results.
//! - [`append`]: copies rows of new tokens to their slots of a cache. [`rotary`]: rotates them on the way.
//!   [`merge`]: merges attention states that have the same rows and different keys.
//! - [`variant`]: a mask together with a score modification. [`mask`]: the keys that a query sees
//!   ([`mask::MaskMod`]). [`score`]: sinks and biases ([`score::ScoreMod`]). [`capped`], [`softcap`],
//!   [`alibi`]: scale, softcap and slopes. [`rows`]: a work tile's rows, and the sequence of these rows.
//!   [`blocks`]: key blocks, with or without a mask. [`block_bias`]: blocks of scores that change alike.
//!   [`staged`]: numbers that scores read from shared memory.
//! - [`backward`]: the gradients of Q, K and V.
//! - [`softmax`]: online softmax with a lazy maximum.
//! - [`work`]: work tiles. [`tensors`]: a work tile's tensors, and the stores of the tile's results.
//! - [`entries`]: every line of `spec`'s table becomes an entry of the PTX.
//! - `exact`: masks and scores on the host, for tests.
//! - [`prelude`]: names for crates that define masks and scores (`docs/your-own-attention.md`).
#![no_std]
// `entries` needs `unsafe`, so this crate cannot `forbid` it. Each other module forbids `unsafe`.
#![deny(unsafe_code)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

#[forbid(unsafe_code)]
pub mod alibi;
#[forbid(unsafe_code)]
pub mod append;
#[forbid(unsafe_code)]
pub mod backward;
#[forbid(unsafe_code)]
pub mod block_bias;
#[forbid(unsafe_code)]
pub mod block_kind;
#[forbid(unsafe_code)]
pub mod block_mask;
#[forbid(unsafe_code)]
pub mod blocks;
#[forbid(unsafe_code)]
pub mod capped;
#[forbid(unsafe_code)]
pub mod decode;
#[forbid(unsafe_code)]
pub mod dequant;
#[allow(unsafe_code)]
pub mod entries;
#[cfg(not(target_arch = "nvptx64"))]
#[forbid(unsafe_code)]
pub mod exact;
#[forbid(unsafe_code)]
pub mod forward;
#[forbid(unsafe_code)]
pub mod hopper;
#[forbid(unsafe_code)]
pub mod lengths;
#[forbid(unsafe_code)]
pub mod mainloop;
#[forbid(unsafe_code)]
pub mod mask;
#[forbid(unsafe_code)]
pub mod merge;
#[forbid(unsafe_code)]
pub mod mixed;
#[forbid(unsafe_code)]
pub mod overlap;
#[forbid(unsafe_code)]
pub mod paged;
#[forbid(unsafe_code)]
pub mod partial;
#[forbid(unsafe_code)]
pub mod prelude;
#[forbid(unsafe_code)]
pub mod rotary;
#[forbid(unsafe_code)]
pub mod rows;
#[forbid(unsafe_code)]
pub mod score;
#[forbid(unsafe_code)]
mod sealed;
#[forbid(unsafe_code)]
pub mod softcap;
#[forbid(unsafe_code)]
pub mod softmax;
#[forbid(unsafe_code)]
pub mod specialised;
#[forbid(unsafe_code)]
pub mod split;
#[forbid(unsafe_code)]
pub mod staged;
#[forbid(unsafe_code)]
pub mod tensors;
#[forbid(unsafe_code)]
pub mod tile_mask;
#[forbid(unsafe_code)]
pub mod variant;
#[forbid(unsafe_code)]
pub mod varlen;
#[forbid(unsafe_code)]
pub mod wide;
#[forbid(unsafe_code)]
pub mod work;

pub use {cuda_std, spec, tile};
