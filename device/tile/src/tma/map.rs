//! Tensor maps and the tensors behind them.
use crate::Block;
use crate::shared::SharedTile;
use contract::{Element, Kernel, RaggedMap, TensorMap};
use core::marker::PhantomData;
use cuda_std::tma;

/// A kind of tensor map. It defines the coordinates of a row. Other crates may add kinds.
///
/// # Safety
/// - The calls of `load` by all producers for which `has_some` is true copy each byte of the tile exactly
///   once. No box reaches a byte outside the tile.
/// - `has_some` is true for producer 0.
pub unsafe trait MapKind: Copy + 'static {
    /// The kernel's parameter, which contains the encoded map.
    type Data: 'static;
    /// The coordinates of a row.
    type At: Copy;
    /// The map as the driver has encoded it.
    fn encoded(data: &Self::Data) -> &TensorMap;
    /// The coordinates of the row that is `rows` rows further down.
    fn down(at: Self::At, rows: u32) -> Self::At;
    /// The number of threads that share the boxes of a tile.
    const PRODUCERS: u32 = 1;
    /// Whether producer `producer` has boxes of a tile of `rows` rows. Producer 0 always has boxes.
    #[inline(always)]
    fn has_some(_: &Self::At, _rows: u32, producer: u32) -> bool {
        producer < Self::PRODUCERS
    }
    /// Starts the producer's share of the copies of a tile to shared memory.
    ///
    /// # Safety
    /// - The preconditions of [`tma::load_4d`], with a map of this kind. The map's boxes make up the tile.
    unsafe fn load(to: u32, map: u64, tile: Panels, at: Self::At, full: u32, producer: u32);
}

/// A kind of tensor map that also serves stores.
///
/// # Safety
/// - `store_if` reads no byte of shared memory outside the box at `from`.
pub unsafe trait StoreMapKind: MapKind {
    /// Starts the copy of a box from shared memory, if `condition` holds.
    ///
    /// # Safety
    /// - As [`tma::store_4d_if`], with a map of this kind.
    unsafe fn store_if(map: u64, column: u32, at: Self::At, from: u32, condition: bool);
}

/// A tile in shared memory as a sequence of panels.
#[derive(Clone, Copy)]
pub struct Panels {
    /// The number of panels.
    pub(crate) count: u32,
    /// Columns per panel.
    pub(crate) columns: u32,
    /// Rows per panel.
    pub(crate) rows: u32,
    /// Bytes per panel row.
    pub(crate) row_bytes: u32,
}

impl Panels {
    /// Rows per panel.
    #[inline(always)]
    pub fn rows(self) -> u32 {
        self.rows
    }

    /// Bytes per panel row.
    #[inline(always)]
    pub fn row_bytes(self) -> u32 {
        self.row_bytes
    }

    /// Calls `copy(shared address, first column)` for each panel of a tile at `to`.
    #[inline(always)]
    pub fn each(self, to: u32, mut copy: impl FnMut(u32, u32)) {
        for panel in 0..self.count {
            copy(to + panel * self.rows * self.row_bytes, panel * self.columns)
        }
    }
}

/// Rows of a dense batch, by row, head and batch.
// SAFETY: one producer; a panel is a box, and all panels are the tile.
unsafe impl MapKind for TensorMap {
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
// SAFETY: `store_if` reads one box, which begins at `from`.
unsafe impl StoreMapKind for TensorMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, [row, head, batch]: [u32; 3], from: u32, condition: bool) {
        // SAFETY: the caller's promise.
        unsafe { tma::store_4d_if(map, [column, row, head, batch], from, condition) }
    }
}

/// Blocks of matrices: tiles that begin at any column, row, head and batch.
#[derive(Clone, Copy)]
pub struct MatrixMap;

// SAFETY: one producer; a panel is a box, and all panels are the tile.
unsafe impl MapKind for MatrixMap {
    type Data = TensorMap;
    type At = [u32; 4];
    #[inline(always)]
    fn encoded(data: &TensorMap) -> &TensorMap {
        data
    }
    #[inline(always)]
    fn down([column, row, head, batch]: [u32; 4], rows: u32) -> [u32; 4] {
        [column, row + rows, head, batch]
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, [first, row, head, batch]: [u32; 4], full: u32, _: u32) {
        // SAFETY: the caller's promise; a box is a panel.
        tile.each(to, |to, column| unsafe { tma::load_4d(to, map, [first + column, row, head, batch], full) })
    }
}

/// The coordinates of a row of one sequence in a [`RaggedMap`].
#[derive(Clone, Copy)]
pub struct RaggedRow {
    /// [`RaggedMap::END`] is one past the sequence's last row.
    row: u32,
    head: u32,
    /// The tensor's row at which this sequence ends.
    end: u32,
}

impl RaggedRow {
    /// Row `row` of the sequence with rows `first..first + rows` of the tensor. All of these rows must exist.
    /// `row` may be one past the sequence's last row.
    #[inline(always)]
    pub fn new(row: u32, head: u32, first: u32, rows: u32) -> Self {
        RaggedRow { row: RaggedMap::END - rows + row, head, end: first + rows }
    }
}

// SAFETY: one producer; a panel is a box, and all panels are the tile.
unsafe impl MapKind for RaggedMap {
    type Data = Self;
    type At = RaggedRow;
    #[inline(always)]
    fn encoded(data: &Self) -> &TensorMap {
        &data.map
    }
    #[inline(always)]
    fn down(at: RaggedRow, rows: u32) -> RaggedRow {
        RaggedRow { row: at.row + rows, ..at }
    }
    #[inline(always)]
    unsafe fn load(to: u32, map: u64, tile: Panels, at: RaggedRow, full: u32, _: u32) {
        tile.each(to, |to, column| {
            // SAFETY: the caller's promise; a box is a panel.
            unsafe { tma::load_5d(to, map, [column, at.row, at.head, at.end, RaggedMap::END], full) }
        })
    }
}
// SAFETY: `store_if` reads one box, which begins at `from`.
unsafe impl StoreMapKind for RaggedMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, at: RaggedRow, from: u32, condition: bool) {
        // SAFETY: the caller's promise.
        unsafe { tma::store_5d_if(map, [column, at.row, at.head, at.end, RaggedMap::END], from, condition) }
    }
}

/// A tensor for TMA, copied in boxes of `R` base tiles of rows and one panel's columns. A row has `C` base
/// tiles of columns; columns that do not exist load as zero and are not stored. The kind of map `M` defines
/// the coordinates.
pub struct TmaTensor<E, const R: usize, const C: usize, M = TensorMap> {
    map: u64,
    element: PhantomData<(E, M)>,
}

/// Whether `boxes` contains the box of a tile of `R x C` base tiles.
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
    /// The tensor behind a map in the launch's parameter. The launch contract must state its box.
    #[inline(always)]
    pub fn tensor<E: Element, const R: usize, const C: usize, M: MapKind>(
        &self,
        map: impl FnOnce(&K::Params) -> &M::Data,
    ) -> TmaTensor<E, R, C, M> {
        const { assert!(K::PARAM_ALIGN >= TensorMap::ALIGN, "a tensor map must be aligned to 64 bytes") }
        const { assert!(has_box::<E, R, C>(K::BOXES), "the launch contract states no such box") }
        // SAFETY: the parameter stays there until the launch ends, as the caller of `enter` promised. No
        // thread writes it.
        let parameter = unsafe { &*core::ptr::with_exposed_provenance::<K::Params>(self.parameter as usize) };
        let map = core::ptr::from_ref(M::encoded(map(parameter))).addr() as u64;
        TmaTensor { map, element: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize, M: MapKind> TmaTensor<E, R, C, M> {
    /// Starts one producer's share of the copies of the tile whose first row is `at`.
    ///
    /// # Safety
    /// - At `to`, a `SharedTile<E, R, C>` may be written until the phase of `full` completes, which expects
    ///   all of its bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, to: u32, at: M::At, full: u32, producer: u32) {
        // SAFETY: the caller's promise; the map's boxes are the tile.
        unsafe { M::load(to, self.map, SharedTile::<E, R, C>::IN_PANELS, at, full, producer) }
    }
}

impl<E: Element, const R: usize, const C: usize, M: StoreMapKind> TmaTensor<E, R, C, M> {
    /// Starts the store of the tile whose first row is `at`, if `condition` holds.
    ///
    /// # Safety
    /// - `from` is a `SharedTile<E, R, C>`. It has been written and fenced, and its writers have passed a
    ///   barrier.
    /// - No thread writes it before the thread with `condition` has waited for its stores.
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
