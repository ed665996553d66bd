//! The rows of dense tensors, and of varlen sequences.
use crate::errors::invalid;
use candle::{Layout, Result, Tensor};

/// The offsets of `n` varlen sequences, which are `n + 1` integers (u32 or i32), and the maximum number of
/// rows per sequence.
pub(crate) struct Starts {
    pub q: Tensor,
    pub k: Tensor,
    pub max_q: usize,
    pub max_k: usize,
}

/// Returns shape and strides of a tensor `[batch, seqlen, heads, head_dim]`. A varlen tensor `[rows, heads,
/// head_dim]` is one batch.
pub(crate) fn shape_and_strides(
    name: &'static str,
    layout: &Layout,
    varlen: bool,
) -> Result<[[usize; 4]; 2]> {
    match (layout.dims(), layout.stride(), varlen) {
        (&[b, s, h, d], &[sb, ss, sh, sd], false) => Ok([[b, s, h, d], [sb, ss, sh, sd]]),
        (&[s, h, d], &[ss, sh, sd], true) => Ok([[1, s, h, d], [0, ss, sh, sd]]),
        (dims, ..) => {
            let expected = match varlen {
                false => "it must be [batch, seqlen, heads, head_dim]",
                true => "it must be [rows of all sequences, heads, head_dim]",
            };
            Err(invalid(name, format_args!("{dims:?}"), expected))
        }
    }
}
