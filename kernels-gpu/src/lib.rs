//! FerroFlash's attention kernels. They read like the papers: no `asm!`, no byte offset, no barrier phase, no
//! thread count.
//!
//! - [`mainloop`]: FlashAttention-2's order of work; [`forward`] runs it in blocks that feed themselves, a
//!   tile each or persistent, [`specialised`] in blocks with a warp that only copies.
//! - [`overlap`]: the next scores under way during this block's softmax. [`wide`]: two warps share the
//!   columns of a head dim that is too much for one.
//! - [`split`]: several blocks share a tile's keys, and the kernel that merges what they leave.
//! - [`decode`]: few queries on a long cache in pages. [`lengths`]: what is made of integers on the device.
//! - [`varlen`]: sequences one behind the other. [`paged`]: many queries on a cache in pages.
//! - [`hopper`]: the forward by an sm_90's own instructions.
//! - [`partial`]: results of different keys, merged.
//! - [`append`]: rows of new tokens go to their places in a cache. [`merge`]: states of the same rows and
//!   other keys become one.
//! - [`softmax`]: online softmax with a lazy maximum. [`softcap`]: bounded scores. [`alibi`]: scores that
//!   fall with the distance. [`mask`]: which keys a query sees.
//! - [`work`]: work tiles. [`tensors`]: a tile's tensors, and what is stored of it.
//! - [`entries`]: every line of `spec`'s table becomes an entry of the PTX.
#![no_std]
// The entries are the one exception, which a `forbid` here would not allow; each other module has its own.
#![deny(unsafe_code)]

#[forbid(unsafe_code)]
pub mod alibi;
#[forbid(unsafe_code)]
pub mod append;
#[forbid(unsafe_code)]
pub mod blocks;
#[forbid(unsafe_code)]
pub mod decode;
#[allow(unsafe_code)]
pub mod entries;
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
pub mod overlap;
#[forbid(unsafe_code)]
pub mod paged;
#[forbid(unsafe_code)]
pub mod partial;
#[forbid(unsafe_code)]
pub mod rows;
#[forbid(unsafe_code)]
pub mod score;
#[forbid(unsafe_code)]
pub mod softcap;
#[forbid(unsafe_code)]
pub mod softmax;
#[forbid(unsafe_code)]
pub mod specialised;
#[forbid(unsafe_code)]
pub mod split;
#[forbid(unsafe_code)]
pub mod tensors;
#[forbid(unsafe_code)]
pub mod variant;
#[forbid(unsafe_code)]
pub mod varlen;
#[forbid(unsafe_code)]
pub mod wide;
#[forbid(unsafe_code)]
pub mod work;
