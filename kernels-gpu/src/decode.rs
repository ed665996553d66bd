//! Decode attention: few queries a sequence on a long cache in pages, lengths on the device.
//!
//! - [`schedule`]: which block does which part of which sequence's keys.
//! - [`attend`]: one such part, transposed: keys, and columns of V, fill the rows of a product.
//! - [`mla`]: the same part of a latent cache, whose values are columns of its keys.
//! - [`softmax`]: online softmax of columns.
//! - [`merge`]: what warps, and then blocks, make of the same rows.
pub mod attend;
pub mod merge;
pub mod mla;
pub mod schedule;
pub mod softmax;
