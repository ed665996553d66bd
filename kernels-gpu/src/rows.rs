//! The rows of a work tile, and the sequence that they belong to.
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::rcp;
use spec::Window;

/// The rows of one thread block. A row counts from the first row of the tile's tensors: on varlen and paged
/// tensors they begin with the tile, which saves the main loop a number.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First row of the tile.
    pub first: u32,
    /// Rows of a tile.
    pub tile: u32,
    /// Rows of the tensors.
    pub q_len: u32,
    /// Keys of the sequence.
    pub k_len: u32,
    /// The window. Its shift leads from a row to its position among the keys.
    pub window: Window,
    /// Sequence and query head.
    pub of: [u32; 2],
}

impl Rows {
    /// The position of a row among the keys.
    #[inline(always)]
    pub fn position(&self, row: u32) -> i32 {
        row as i32 + self.window.shift
    }
}

/// The sequence and head of a work tile, as masks and scores see it.
///
/// Queries and keys are numbered from 0 within their sequence, on dense, varlen and paged tensors alike.
#[derive(Clone, Copy)]
pub struct Sequence<'r> {
    rows: &'r Rows,
    /// Queries before row 0.
    before: u32,
    scale_log2: f32,
}

impl<'r> Sequence<'r> {
    /// The sequence of `rows`, whose row 0 is query `before`, with the scale of [`spec::FwdParams`].
    #[inline(always)]
    pub fn new(rows: &'r Rows, before: u32, scale_log2: f32) -> Self {
        Sequence { rows, before, scale_log2 }
    }

    /// Number of the sequence, or of the batch.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.rows.of[0]
    }

    /// Query head.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.rows.of[1]
    }

    /// Number of queries.
    #[inline(always)]
    pub fn queries(&self) -> i32 {
        (self.before + self.rows.q_len) as i32
    }

    /// Number of keys.
    #[inline(always)]
    pub fn keys(&self) -> i32 {
        self.rows.k_len as i32
    }

    /// Query `q` stands at position `q + shift` among the keys: with bottom-right alignment, the last query
    /// stands at the last key.
    #[inline(always)]
    pub fn shift(&self) -> i32 {
        self.rows.window.shift - self.before as i32
    }

    /// Keys before and behind the position that the request's window has; [`Window::UNBOUNDED`] for all.
    #[inline(always)]
    pub fn window(&self) -> [i32; 2] {
        [self.rows.window.left, self.rows.window.right]
    }

    /// The positions of the first and the last query of the work tile.
    #[inline(always)]
    pub fn tile(&self) -> [i32; 2] {
        let last = (self.rows.first + self.rows.tile).min(self.rows.q_len) - 1;
        [self.rows.first, last].map(|row| self.rows.position(row))
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
}
