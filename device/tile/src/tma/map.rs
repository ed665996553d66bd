//! Tensor maps, and the tensors that they describe.
use crate::shared::SharedTile;
use crate::{Block, Warp};
use contract::{Element, Kernel, RaggedMap, TensorMap};
use core::marker::PhantomData;
use cuda_std::math::{opaque, stay_a_loop};
use cuda_std::tma;

/// A kind of tensor map. The kind defines the coordinates of a row. Other crates may add kinds.
///
/// # Safety
/// - All producers for which `has_some` is true call `load`, and these calls together copy each byte of the
///   tile exactly once. No box reaches a byte outside of the tile.
/// - `has_some` is true for producer 0.
/// - If all lanes of a warp call `load_boxes` with what `find_boxes` has found for one row, these calls
///   together copy each byte of the tile exactly once, too.
pub unsafe trait MapKind: Copy + 'static {
    /// The type of the kernel's parameter that contains the encoded map.
    type Data: 'static;
    /// The type of a row's coordinates.
    type At: Copy;
    /// The map as the driver has encoded it.
    fn encoded(data: &Self::Data) -> &TensorMap;
    /// The kind for tiles that begin with any column, or have many panels ([`Panels::each_of_many`]).
    type Wide: MapKind<Data = Self::Data, At = Self::At>;
    /// The coordinates of the row that is `rows` rows further down.
    fn down(at: Self::At, rows: u32) -> Self::At;
    /// The number of threads that share the boxes of a tile.
    const PRODUCERS: u32 = 1;
    /// Whether producer `producer` has boxes of a tile of `rows` rows. Producer 0 always has boxes.
    #[inline(always)]
    fn has_some(_: &Self::At, _rows: u32, producer: u32) -> bool {
        producer < Self::PRODUCERS
    }
    /// Starts this producer's share of the copies of a tile to shared memory.
    ///
    /// # Safety
    /// - The preconditions of [`tma::load_4d`] hold, for a map of this kind. The boxes of the map make up the
    ///   tile.
    unsafe fn load(to: u32, map: u64, tile: Panels, at: Self::At, full: u32, producer: u32);

    /// The boxes of one lane, if the lanes of a warp share the boxes of a tile.
    type Boxes: Copy;
    /// Finds this lane's boxes of the tile at `at`.
    fn find_boxes(at: Self::At, warp: Warp) -> Self::Boxes;
    /// Starts the copies of a lane's boxes to shared memory.
    ///
    /// # Safety
    /// - The preconditions of `load` hold.
    unsafe fn load_boxes(to: u32, map: u64, tile: Panels, boxes: Self::Boxes, full: u32, lane: u32);
}

/// Implements a map kind with one producer for a warp: the first lane has all boxes.
macro_rules! first_lane {
    () => {
        type Boxes = Self::At;
        #[inline(always)]
        fn find_boxes(at: Self::At, _: Warp) -> Self::At {
            at
        }
        #[inline(always)]
        unsafe fn load_boxes(to: u32, map: u64, tile: Panels, at: Self::At, full: u32, lane: u32) {
            if lane == 0 {
                // SAFETY: the caller keeps the preconditions.
                unsafe { Self::load(to, map, tile, at, full, 0) }
            }
        }
    };
}

/// A kind of tensor map that also serves stores.
///
/// # Safety
/// - `store_if` reads no byte of shared memory outside of the box at `from`.
pub unsafe trait StoreMapKind: MapKind {
    /// Starts the copy of a box from shared memory, if `condition` is true.
    ///
    /// # Safety
    /// - The preconditions of [`tma::store_4d_if`] hold, for a map of this kind.
    unsafe fn store_if(map: u64, column: u32, at: Self::At, from: u32, condition: bool);
}

/// A tile in shared memory as a sequence of panels.
#[derive(Clone, Copy)]
pub struct Panels {
    /// The first column of the first panel, in global memory.
    pub(crate) first: u32,
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
    /// The most panels whose copies the compilers may unroll. A producer with 24 registers spills if they
    /// unroll the copies of eight panels.
    const UNROLLED: u32 = 5;

    /// Whether there are more panels.
    pub(crate) const fn is_wide(self) -> bool {
        self.count > Self::UNROLLED
    }

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

    /// Calls `copy(shared address, first column)` for each panel of a tile at `to` that begins with column 0.
    #[inline(always)]
    pub fn each(self, to: u32, mut copy: impl FnMut(u32, u32)) {
        for panel in 0..self.count {
            copy(to + panel * self.rows * self.row_bytes, panel * self.columns)
        }
    }

    /// [`Panels::each`] for a tile that begins with any column, and may have many panels.
    #[inline(always)]
    pub fn each_of_many(self, to: u32, mut copy: impl FnMut(u32, u32)) {
        if !self.is_wide() {
            for panel in 0..self.count {
                copy(to + panel * self.rows * self.row_bytes, self.first + panel * self.columns)
            }
            return;
        }
        let mut panel = 0;
        while panel < self.count {
            stay_a_loop();
            copy(to + panel * self.rows * self.row_bytes, self.first + panel * self.columns);
            panel += opaque(1);
        }
    }
}

/// The map kind of dense batches: a row's coordinates are row, head and batch.
// SAFETY: there is one producer. Each panel is a box, and the panels are the tile.
unsafe impl MapKind for TensorMap {
    first_lane!();
    type Data = Self;
    type At = [u32; 3];
    type Wide = Self;
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
        // SAFETY: the caller keeps the preconditions; a box is a panel.
        tile.each_of_many(to, |to, column| unsafe { tma::load_4d(to, map, [column, row, head, batch], full) })
    }
}
// SAFETY: `store_if` starts the copy of one box, the box at `from`, and reads no other shared memory.
unsafe impl StoreMapKind for TensorMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, [row, head, batch]: [u32; 3], from: u32, condition: bool) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { tma::store_4d_if(map, [column, row, head, batch], from, condition) }
    }
}

/// Blocks of matrices: tiles that begin at any column, row, head and batch.
#[derive(Clone, Copy)]
pub struct MatrixMap;

// SAFETY: one producer; a panel is a box, and all panels are the tile.
unsafe impl MapKind for MatrixMap {
    first_lane!();
    type Data = TensorMap;
    type At = [u32; 4];
    type Wide = Self;
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
    /// The row's coordinate: [`RaggedMap::END`] is the row behind the sequence's last row.
    row: u32,
    head: u32,
    /// The row of the tensor at which this sequence ends.
    end: u32,
}

impl RaggedRow {
    /// Row `row` of the sequence with rows `first..first + rows` of the tensor. All rows of the sequence must
    /// exist. `row` may be the row behind the sequence's last row.
    #[inline(always)]
    pub fn new(row: u32, head: u32, first: u32, rows: u32) -> Self {
        RaggedRow { row: RaggedMap::END - rows + row, head, end: first + rows }
    }
}

// SAFETY: there is one producer. Each panel is a box, and the panels are the tile.
unsafe impl MapKind for RaggedMap {
    first_lane!();
    type Data = Self;
    type At = RaggedRow;
    type Wide = Self;
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
        tile.each_of_many(to, |to, column| {
            // SAFETY: the caller keeps the preconditions; a box is a panel.
            unsafe { tma::load_5d(to, map, [column, at.row, at.head, at.end, RaggedMap::END], full) }
        })
    }
}
// SAFETY: `store_if` starts the copy of one box, the box at `from`, and reads no other shared memory.
unsafe impl StoreMapKind for RaggedMap {
    #[inline(always)]
    unsafe fn store_if(map: u64, column: u32, at: RaggedRow, from: u32, condition: bool) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { tma::store_5d_if(map, [column, at.row, at.head, at.end, RaggedMap::END], from, condition) }
    }
}

/// A tensor for TMA, copied in boxes of `R` base tiles of rows and one panel's columns. A row has `C` base
/// tiles of columns; columns that do not exist load as zero and are not stored. The kind `M` of the map
/// defines the coordinates.
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
    /// The tensor that a map in the launch's parameter describes. The launch contract must state the box of
    /// the map.
    #[inline(always)]
    pub fn tensor<E: Element, const R: usize, const C: usize, M: MapKind>(
        &self,
        map: impl FnOnce(&K::Params) -> &M::Data,
    ) -> TmaTensor<E, R, C, M> {
        const { assert!(K::PARAM_ALIGN >= TensorMap::ALIGN, "a tensor map must be aligned to 64 bytes") }
        const { assert!(has_box::<E, R, C>(K::BOXES), "the launch contract states no such box") }
        // SAFETY: the parameter stays at this address until the launch ends, as the caller of `enter`
        // promised. No thread writes it.
        let parameter = unsafe { &*core::ptr::with_exposed_provenance::<K::Params>(self.parameter as usize) };
        let map = core::ptr::from_ref(M::encoded(map(parameter))).addr() as u64;
        TmaTensor { map, element: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize, M: MapKind> TmaTensor<E, R, C, M> {
    /// Returns the same tensor.
    #[inline(always)]
    pub(crate) fn copied(&self) -> Self {
        TmaTensor { map: self.map, element: PhantomData }
    }

    /// The panels of the tile that begins with column `column`.
    #[inline(always)]
    const fn panels(column: u32) -> Panels {
        Panels { first: column, ..SharedTile::<E, R, C>::IN_PANELS }
    }

    /// Starts one producer's share of the copies of a tile. The tile begins with column `column`, and its
    /// first row has the coordinates `at`.
    ///
    /// # Safety
    /// - A `SharedTile<E, R, C>` may be written at `to` until the phase of `full` completes, and this phase
    ///   expects all bytes of the tile.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, to: u32, column: u32, at: M::At, full: u32, producer: u32) {
        // SAFETY: the caller keeps the preconditions; the map's boxes are the tile.
        unsafe { M::load(to, self.map, Self::panels(column), at, full, producer) }
    }
}

impl<E: Element, const R: usize, const C: usize, M: MapKind> TmaTensor<E, R, C, M> {
    /// Starts the copies of one lane's boxes ([`MapKind::load_boxes`]) of the tile that begins with column
    /// `column`.
    ///
    /// # Safety
    /// - The preconditions of [`TmaTensor::load`] hold.
    #[inline(always)]
    pub(crate) unsafe fn load_boxes(&self, to: u32, column: u32, boxes: M::Boxes, full: u32, lane: u32) {
        // SAFETY: the caller keeps the preconditions; the map's boxes are the tile.
        unsafe { M::load_boxes(to, self.map, Self::panels(column), boxes, full, lane) }
    }
}

impl<E: Element, const R: usize, const C: usize, M: StoreMapKind> TmaTensor<E, R, C, M> {
    /// Starts the store of `P` base tiles of columns from `column` on, if `condition` is true. Their first
    /// row has the coordinates `at`.
    ///
    /// # Safety
    /// - A `SharedTile<E, R, P>` of whole panels lies at `from`. It has been written and fenced, and its
    ///   writers have passed a barrier.
    /// - No thread writes the tile before the thread with `condition` has waited for its stores.
    #[inline(always)]
    pub(crate) unsafe fn store_if<const P: usize>(&self, from: u32, column: u32, at: M::At, condition: bool) {
        for panel in 0..SharedTile::<E, R, P>::PANELS {
            let column = column + panel * SharedTile::<E, R, P>::PANEL_COLUMNS;
            let from = from + panel * SharedTile::<E, R, P>::PANEL_BYTES;
            // SAFETY: the caller keeps the preconditions; the map's boxes are panels of the tile.
            unsafe { M::store_if(self.map, column, at, from, condition) }
        }
        tma::commit_group();
    }
}
