//! Tensor maps of paged KV caches, as kernels see them: plain data without padding, with equal bytes on both
//! sides.
use crate::TensorMap;

/// The tensor map of keys, or of values, in the pages of a [`Cache`](crate::Cache). It has the dimensions of
/// a [`RaggedMap`](crate::RaggedMap): the rows of one sequence in one page form a sequence that ends inside
/// the rows of all pages. Consecutive pages begin `pitch` rows apart ([`PageBoxes`]). If heads lie before
/// rows, this is more than a page has.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedMap {
    /// The encoded tensor map.
    pub map: TensorMap,
}

/// The boxes of every [`PagedMap`] of a launch, and the distance between pages. Only the host, which encodes
/// the tensor maps, can construct it. A kernel receives it in its parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBoxes {
    rows: u32,
    pitch: u32,
}
contract::no_padding! {
    PagedMap { map }
    PageBoxes { rows, pitch }
}

impl PageBoxes {
    /// Boxes of `rows` rows, for a tensor map that was encoded with them. `rows` must divide a stage's rows.
    /// It must also divide a page's rows, unless there is one page only. Pages begin `pitch` rows apart.
    ///
    /// # Panics
    /// If `rows` is 0.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn new(rows: u32, pitch: u32) -> Self {
        assert!(rows > 0, "a box has a row");
        PageBoxes { rows, pitch }
    }

    /// Rows per box.
    #[inline(always)]
    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows from page to page.
    #[inline(always)]
    pub const fn pitch(&self) -> u32 {
        self.pitch
    }
}
