//! Decode attention: few queries per sequence on a long paged KV cache, with lengths on the device.
//!
//! - [`schedule`]: work items. Each block derives its work item from the lengths.
//! - [`batch`]: the queries of each sequence.
//! - [`attend`]: one work item as transposed products, whose rows are keys, or columns of V.
//! - [`mla`]: one work item on a latent cache, whose values are columns of its keys.
//! - `key_stages`: the stages of such keys, as they are or converted.
//! - [`latents`]: the keys of such a work item, of its sequence or of its query's list.
//! - [`softmax`]: online softmax of columns.
//! - [`merge`]: merges partial results of warps, and of splits.
pub mod attend;
pub mod batch;
mod key_stages;
pub mod latents;
pub mod merge;
pub mod mla;
pub mod rows;
pub mod schedule;
pub mod softmax;
