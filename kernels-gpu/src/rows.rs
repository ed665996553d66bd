//! The rows of a work tile: what masks and scores know of it.
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::rcp;
use spec::Window;

/// The rows of one thread block's work tile, with their sequence.
///
/// Queries and keys are numbered from 0 within their sequence, for dense, varlen and paged tensors alike.
/// Inside of kernels, a *row* counts from the first row of the tile's tensors: on varlen and paged tensors
/// they begin with the tile, which saves the main loop a number.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First row of the tile.
    pub(crate) first: u32,
    /// Rows of a tile.
    pub(crate) tile: u32,
    /// Rows of the tensors.
    pub(crate) q_len: u32,
    /// Keys of the sequence.
    pub(crate) k_len: u32,
    /// The window. Its shift leads from a row to its position among the keys.
    pub(crate) window: Window,
    /// Queries of the sequence before row 0.
    pub(crate) before: u32,
    /// Factor from scores to exponents of 2.
    pub(crate) scale_log2: f32,
    /// Sequence and query head.
    pub(crate) of: [u32; 2],
}

impl Rows {
    /// Queries of the sequence.
    #[inline(always)]
    pub fn queries(&self) -> i32 {
        (self.before + self.q_len) as i32
    }

    /// Keys of the sequence.
    #[inline(always)]
    pub fn keys(&self) -> i32 {
        self.k_len as i32
    }

    /// Query `q` stands at position `q + shift` among the keys: with bottom-right alignment the last query
    /// stands at the last key.
    #[inline(always)]
    pub fn shift(&self) -> i32 {
        self.window.shift - self.before as i32
    }

    /// The sequence, or the batch.
    #[inline(always)]
    pub fn sequence(&self) -> u32 {
        self.of[0]
    }

    /// The query head.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.of[1]
    }

    /// Factor from products of queries and keys to scores.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        self.scale_log2 * LN_2
    }

    /// Factor from scores to products of queries and keys, with an error of 1 ulp.
    #[inline(always)]
    pub fn unscale(&self) -> f32 {
        LOG2_E * rcp(self.scale_log2)
    }

    /// The first and the last query of the tile.
    #[inline(always)]
    pub fn ends(&self) -> [i32; 2] {
        let last = (self.first + self.tile).min(self.q_len) - 1;
        [self.first, last].map(|row| self.query(row))
    }

    /// The query of a row.
    #[inline(always)]
    pub(crate) fn query(&self, row: u32) -> i32 {
        (row + self.before) as i32
    }
}
