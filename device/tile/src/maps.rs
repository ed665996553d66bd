//! Tensors as the copy engine sees them: through maps of several kinds.
use crate::{Block, SharedTile};
use contract::{Element, Kernel, RaggedMap, TensorMap};
use core::marker::PhantomData;
use cuda_std::tma;

/// A kind of map: how the engine is told where rows are. Another crate may have one of its own.
///
/// # Safety
/// - `load` of all [`Map::COPIERS`] copiers, and of those alone for which `has_some` is true, copies every
///   byte of the tile once; a box reaches no byte outside the tile.
/// - `has_some` is true for copier 0.
pub unsafe trait Map: Copy + 'static {
    /// What a kernel is told: the encoded map is a field of it.
    type Data: 'static;
    /// Where a row is.
    type At: Copy;
    /// What the driver has encoded.
    fn encoded(data: &Self::Data) -> &TensorMap;
    /// So many rows further down.
    fn down(at: Self::At, rows: u32) -> Self::At;
    /// How many threads share the boxes of a tile.
    const COPIERS: u32 = 1;
    /// Whether the `copier`-th of them has boxes of a tile of so many rows, as the first always has.
    #[inline(always)]
    fn has_some(_: &Self::At, _rows: u32, copier: u32) -> bool {
        copier < Self::COPIERS
    }
    /// Starts the `copier`-th's share of the copies of a tile to shared memory.
    ///
    /// # Safety
    /// - As [`tma::load_4d`], of a map of this kind, whose boxes, all together, are the tile.
    unsafe fn load(to: u32, map: u64, tile: Panels, at: Self::At, full: u32, copier: u32);
}

/// A kind of map by which tiles are stored, too.
///
/// # Safety
/// - `store_if` reads no byte of shared memory outside the box at `from`.
pub unsafe trait MapOut: Map {
    /// Starts the copy of a box from shared memory.
    ///
    /// # Safety
    /// - As [`tma::store_4d_if`], of a map of this kind.
    unsafe fn store_if(map: u64, column: u32, at: Self::At, from: u32, condition: bool);
}

/// A tile in shared memory, panel by panel.
#[derive(Clone, Copy)]
pub struct Panels {
    /// How many.
    pub(crate) count: u32,
    /// Columns of each.
    pub(crate) columns: u32,
    /// Rows of each.
    pub(crate) rows: u32,
    /// Bytes of a panel's row.
    pub(crate) row_bytes: u32,
}

impl Panels {
    /// Rows of each panel.
    #[inline(always)]
    pub fn rows(self) -> u32 {
        self.rows
    }

    /// Bytes of a panel's row.
    #[inline(always)]
    pub fn row_bytes(self) -> u32 {
        self.row_bytes
    }

    /// Where each panel of a tile at `to` begins, and with which column.
    #[inline(always)]
    pub fn each(self, to: u32, mut copy: impl FnMut(u32, u32)) {
        for panel in 0..self.count {
            copy(to + panel * self.rows * self.row_bytes, panel * self.columns)
        }
    }
}

/// Rows of batches that are equally long, by row, head, batch.
// SAFETY: one copier; a panel is a box, and all panels are the tile.
unsafe impl Map for TensorMap {
    type Data = Self;
    type At = [u32; 3];
    #[inline(always)]
    fn encoded(data: &Self) -> &TensorMap {
        data
    }
    #[inline(always)]
    fn down([row, head, batch]: [u32; 3], rows: u32) -> [u32; 3] {
        [row + rows, head, batch]
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, [row, head, batch]: [u32; 3], full: u32, _: u32) {
        // SAFETY: the caller's promise; a box is a panel.
        tile.each(to, |to, column| unsafe { tma::load_4d(to, map, [column, row, head, batch], full) })
    }
}
// SAFETY: one box, from where it begins.
unsafe impl MapOut for TensorMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, [row, head, batch]: [u32; 3], from: u32, condition: bool) {
        // SAFETY: the caller's promise.
        unsafe { tma::store_4d_if(map, [column, row, head, batch], from, condition) }
    }
}

/// A row of a head of a sequence, as a [`RaggedMap`] is told of it.
#[derive(Clone, Copy)]
pub struct RowOfSequence {
    /// [`RaggedMap::END`] is behind the sequence's last.
    row: u32,
    head: u32,
    /// Rows of all sequences until there.
    end: u32,
}

impl RowOfSequence {
    /// Row `row` of a sequence of rows `first..first + rows` of all, which must exist. It may be one behind
    /// its last: who cuts sequences out of all rows has the last word on what exists.
    #[inline(always)]
    pub fn new(row: u32, head: u32, first: u32, rows: u32) -> Self {
        RowOfSequence { row: RaggedMap::END - rows + row, head, end: first + rows }
    }
}

// SAFETY: one copier; a panel is a box, and all panels are the tile.
unsafe impl Map for RaggedMap {
    type Data = Self;
    type At = RowOfSequence;
    #[inline(always)]
    fn encoded(data: &Self) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: RowOfSequence, rows: u32) -> RowOfSequence {
        RowOfSequence { row: at.row + rows, ..at }
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: RowOfSequence, full: u32, _: u32) {
        tile.each(to, |to, column| {
            // SAFETY: the caller's promise; a box is a panel.
            unsafe { tma::load_5d(to, map, [column, at.row, at.head, at.end, RaggedMap::END], full) }
        })
    }
}
// SAFETY: one box, from where it begins.
unsafe impl MapOut for RaggedMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, at: RowOfSequence, from: u32, condition: bool) {
        // SAFETY: the caller's promise.
        unsafe { tma::store_5d_if(map, [column, at.row, at.head, at.end, RaggedMap::END], from, condition) }
    }
}

/// A tensor as the copy engine sees it, taken in boxes of `R` base tiles of rows and a panel's columns. `C`
/// base tiles of columns make up a row; those that do not exist are zero, and not written. Where its rows are
/// it is told as its kind of map wants to know.
pub struct GlobalTiles<E, const R: usize, const C: usize, M = TensorMap> {
    map: u64,
    element: PhantomData<(E, M)>,
}

/// Whether one of `boxes` is what a tile of `R x C` base tiles is copied in.
const fn has_box<E: Element, const R: usize, const C: usize>(boxes: &[[u32; 2]]) -> bool {
    let mut at = 0;
    while at < boxes.len() {
        let [columns, rows] = boxes[at];
        if columns == SharedTile::<E, R, C>::PANEL_COLUMNS && rows == R as u32 * 16 {
            return true;
        }
        at += 1;
    }
    false
}

impl<K: Kernel> Block<K> {
    /// The tensor behind a map of the launch's parameter, in boxes that the launch contract states.
    #[inline(always)]
    pub fn tensor<E: Element, const R: usize, const C: usize, M: Map>(
        &self,
        map: impl FnOnce(&K::Params) -> &M::Data,
    ) -> GlobalTiles<E, R, C, M> {
        const { assert!(K::PARAM_ALIGN >= TensorMap::ALIGN, "a tensor map lies on 64 bytes") }
        const { assert!(has_box::<E, R, C>(K::BOXES), "the launch contract states no such box") }
        // SAFETY: the parameter lies there until the launch ends, as `enter` was promised; nobody writes it.
        let parameter = unsafe { &*core::ptr::with_exposed_provenance::<K::Params>(self.parameter as usize) };
        let map = core::ptr::from_ref(M::encoded(map(parameter))).addr() as u64;
        GlobalTiles { map, element: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize, M: Map> GlobalTiles<E, R, C, M> {
    /// Starts one thread's share of copying a tile, whose rows begin `at` one.
    ///
    /// # Safety
    /// - `to` is where a `SharedTile<E, R, C>` may be written until the phase of `full` has ended, which
    ///   expects all of its bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, to: u32, at: M::At, full: u32, copier: u32) {
        // SAFETY: the caller's promise; the map's boxes are the tile.
        unsafe { M::load(to, self.map, SharedTile::<E, R, C>::IN_PANELS, at, full, copier) }
    }
}

impl<E: Element, const R: usize, const C: usize, M: MapOut> GlobalTiles<E, R, C, M> {
    /// Starts storing a tile, whose rows begin `at` one.
    ///
    /// # Safety
    /// - `from` is where a `SharedTile<E, R, C>` lies, written, fenced, and met at a barrier by all who
    ///   wrote.
    /// - Nobody writes there before the thread of `condition` has waited for its stores.
    #[inline(always)]
    pub(crate) unsafe fn store_if(&self, from: u32, at: M::At, condition: bool) {
        for panel in 0..SharedTile::<E, R, C>::PANELS {
            let column = panel * SharedTile::<E, R, C>::PANEL_COLUMNS;
            let from = from + panel * SharedTile::<E, R, C>::PANEL_BYTES;
            // SAFETY: the caller's promise; the map's boxes are panels of the tile.
            unsafe { M::store_if(self.map, column, at, from, condition) }
        }
        tma::commit_group();
    }
}
