//! FerroFlash's attention kernels. The kernels read like the papers: they contain no `asm!`, byte offset,
//! barrier phase or thread count.
//!
//! | room | what stands there |
//! |---|---|
//! | [`variant`] | what masks and scores are, in every direction: the keys that a query sees ([`variant::mask`]), scale, softcap, slopes, sinks and biases ([`variant::score`]), key blocks with and without a mask ([`variant::blocks`]) |
//! | [`forward`] | portable forward kernels; [`forward::mainloop`] is FlashAttention-2's order of work |
//! | [`hopper`] | forward kernels with the instructions that only sm_90 has |
//! | [`decode`] | few queries on a long paged KV cache |
//! | [`backward`] | the gradients of Q, K and V |
//! | [`cache`] | rows of new tokens are rotated, and copied to their slots of a cache; attention states merge |
//!
//! Every room uses these files: [`work`] (work tiles), [`rows`] (the rows of a work tile, and their
//! sequence), [`tensors`] (a work tile's tensors, and the stores of its results), [`capped`] (the parameters
//! of scores), [`softmax`] (online softmax with a lazy maximum), [`partial`] (merges partial results),
//! [`lengths`] (clamps integers that only the device knows), [`block_mask`] (describes a mask by blocks).
//! [`entries`] turns every line of `spec`'s table into an entry of the PTX. `exact` computes masks and scores
//! on the host, for tests. [`prelude`] has the names for crates that define masks and scores
//! (`docs/your-own-attention.md`).
#![no_std]
// `entries` needs `unsafe`, so this crate cannot `forbid` it. Each other module forbids `unsafe`.
#![deny(unsafe_code)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

#[forbid(unsafe_code)]
pub mod backward;
#[forbid(unsafe_code)]
pub mod block_mask;
#[forbid(unsafe_code)]
pub mod cache;
#[forbid(unsafe_code)]
pub mod capped;
#[forbid(unsafe_code)]
pub mod decode;
#[allow(unsafe_code)]
pub mod entries;
#[cfg(not(target_arch = "nvptx64"))]
#[forbid(unsafe_code)]
pub mod exact;
#[forbid(unsafe_code)]
pub mod forward;
#[forbid(unsafe_code)]
pub mod head_maxima;
#[forbid(unsafe_code)]
pub mod hopper;
#[forbid(unsafe_code)]
pub mod lengths;
#[forbid(unsafe_code)]
pub mod number_tiles;
#[forbid(unsafe_code)]
pub mod partial;
#[forbid(unsafe_code)]
pub mod prelude;
#[forbid(unsafe_code)]
pub mod quantise;
#[forbid(unsafe_code)]
pub mod round_fp8;
#[forbid(unsafe_code)]
pub mod rows;
#[forbid(unsafe_code)]
mod sealed;
#[forbid(unsafe_code)]
pub mod softmax;
#[forbid(unsafe_code)]
pub mod tensors;
#[forbid(unsafe_code)]
pub mod used_queries;
#[forbid(unsafe_code)]
pub mod variant;
#[forbid(unsafe_code)]
pub mod work;

pub use {cuda_std, spec, tile};
