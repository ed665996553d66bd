//! Where varlen sequences begin.
use candle::Tensor;

/// The offsets of `n` varlen sequences, which are `n + 1` integers (u32 or i32), and the maximum number of
/// rows per sequence.
pub(crate) struct Starts {
    pub q: Tensor,
    pub k: Tensor,
    pub max_q: usize,
    pub max_k: usize,
}
