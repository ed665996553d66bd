//! The sequences of varlen tensors that kernels prepare for products of eight bits.
use crate::*;

/// The sequences of varlen tensors that a kernel prepares for a [`Varlen`] kernel with products of eight
/// bits. Blocks of rows are numbered by [`Sequences::by_rows`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Sequences {
    /// The rows of Q, and of K and V. Without sequences: all rows of a batch. Of keys in a KV cache: the most
    /// of a sequence.
    pub rows: [CuSeqlens; 2],
    /// See [`VarlenParams::seqused_k`].
    pub seqused_k: Integers,
    /// The mapping from blocks to sequences, or [`Sequences::NONE`] for dense tensors.
    pub blocks: Sequences,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! { Fp8Sequences { rows, seqused_k, blocks, reserved } }
