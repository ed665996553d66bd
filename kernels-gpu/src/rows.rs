//! The rows of a work tile, and the sequence of these rows.
use crate::capped::Capped;
use attention_tile::head_of;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::rcp;
use spec::{Head, MaskMarker, Window};
use tile::group::Capability;

/// The rows of one thread block. Row 0 is the first row of the tile's tensors. Varlen and paged tensors begin
/// with the tile itself, so the main loop needs one number less.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First row of the tile.
    pub first: u32,
    /// Number of rows of a tile.
    pub tile: u32,
    /// Number of rows of the tensors.
    pub q_len: u32,
    /// Number of keys of the sequence.
    pub k_len: u32,
    /// The window of the mask. Its shift converts a row to a position among the keys.
    pub window: Window,
    /// Index of the sequence, and index of the query head.
    pub of: [u32; 2],
}

impl Rows {
    /// The position of row `row` among the keys.
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
    /// Index of the sequence, or of the batch.
    pub index: u32,
    /// Index of the query head.
    pub head: u32,
    /// Number of queries.
    pub queries: i32,
    /// Number of keys.
    pub keys: i32,
    /// Query `q` has position `q + shift` among the keys. With bottom-right alignment, the last query has the
    /// position of the last key.
    pub shift: i32,
    /// The request's window: see [`Sequence::window`].
    pub(crate) window: [i32; 2],
    /// The first and the last query of the work tile.
    pub tile: [i32; 2],
    /// Factor that converts scores to exponents of 2.
    pub(crate) scale_log2: f32,
    /// Sequence and query head, in a form that masks cannot change.
    pub(crate) at: Head,
}

impl Sequence {
    /// The sequence of a tile with the rows `rows`. Row 0 is query `before` of the sequence.
    #[inline(always)]
    pub(crate) fn of(p: &impl Capped, rows: &Rows, before: u32, by: &impl Capability) -> Self {
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
            at: head_of(rows.of[0], rows.of[1], by),
        }
    }

    /// The sequence with the work tile `m_block` of `tile_m` queries, if it has queries there.
    #[inline(always)]
    pub(crate) fn with_tile(self, m_block: u32, tile_m: u32) -> Option<Self> {
        let first = (m_block * tile_m) as i32;
        let tile = [first, (first + tile_m as i32).min(self.queries) - 1];
        (first < self.queries).then_some(Sequence { tile, ..self })
    }

    /// The request's window, for mask `M`: the number of visible keys before and behind a query's position;
    /// [`Window::UNBOUNDED`] if there is no bound. A mask that reads no window does not compile with this
    /// call.
    #[inline(always)]
    pub fn window<M: MaskMarker>(&self) -> [i32; 2] {
        const { assert!(M::READS_WINDOW, "a mask that reads the request's window has `READS_WINDOW = true`") }
        self.window
    }

    /// Factor that converts products of queries and keys to scores.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        self.scale_log2 * LN_2
    }

    /// Factor that converts scores to products of queries and keys, with an error of 1 ulp.
    #[inline(always)]
    pub fn unscale(&self) -> f32 {
        LOG2_E * rcp(self.scale_log2)
    }
}
