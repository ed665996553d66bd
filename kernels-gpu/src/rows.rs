//! The rows of a work tile, and the sequence that they belong to.
use crate::capped::Capped;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::rcp;
use spec::Window;

/// The rows of one thread block. A row counts from the first row of the tile's tensors. Varlen and paged
/// tensors begin with the tile, which saves the main loop a number.
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
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Number of the sequence, or of the batch.
    pub index: u32,
    /// Query head.
    pub head: u32,
    /// Number of queries.
    pub queries: i32,
    /// Number of keys.
    pub keys: i32,
    /// Query `q` stands at position `q + shift` among the keys: with bottom-right alignment, the last query
    /// stands at the last key.
    pub shift: i32,
    /// The window's keys before and behind the position, as the host planned them; [`Window::UNBOUNDED`] if
    /// there is no bound. Masks may ignore them.
    pub window: [i32; 2],
    /// The first and the last query of the work tile.
    pub tile: [i32; 2],
    /// Factor from scores to exponents of 2.
    pub(crate) scale_log2: f32,
}

impl Sequence {
    /// The sequence of a tile with rows `rows`. Their row 0 is query `before` of the sequence.
    #[inline(always)]
    pub(crate) fn of(p: &impl Capped, rows: &Rows, before: u32) -> Self {
        let (before, last) = (before as i32, (rows.first + rows.tile).min(rows.q_len) - 1);
        let Window { shift, left, right } = rows.window;
        Sequence {
            index: rows.of[0],
            head: rows.of[1],
            queries: before + rows.q_len as i32,
            keys: rows.k_len as i32,
            shift: shift - before,
            window: [left, right],
            tile: [rows.first, last].map(|row| before + row as i32),
            scale_log2: p.scale_log2(),
        }
    }

    /// The sequence with the work tile `m_block` of `tile_m` queries, if it has queries there.
    #[inline(always)]
    pub(crate) fn with_tile(self, m_block: u32, tile_m: u32) -> Option<Self> {
        let first = (m_block * tile_m) as i32;
        let tile = [first, (first + tile_m as i32).min(self.queries) - 1];
        (first < self.queries).then_some(Sequence { tile, ..self })
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
