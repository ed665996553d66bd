//! Where varlen sequences begin.
use candle::Tensor;

/// The offsets of `n` varlen sequences, which are `n + 1` integers (u32 or i32), and the maximum number of
/// rows per sequence.
#[derive(Clone, Copy)]
pub(crate) struct Starts<T = Tensor> {
    pub q: T,
    pub k: T,
    pub max_q: usize,
    pub max_k: usize,
}

impl Starts {
    /// Borrows the offsets.
    pub fn as_ref(&self) -> Starts<&Tensor> {
        let Starts { q, k, max_q, max_k } = self;
        Starts { q, k, max_q: *max_q, max_k: *max_k }
    }
}
