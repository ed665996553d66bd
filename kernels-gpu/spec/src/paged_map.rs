//! Tensor maps of caches in pages, as kernels see them: plain data, no padding, the same bytes on both sides.
use crate::TensorMap;

/// The map of keys, or of values, in the pages of a [`Cache`](crate::Cache), whose rows are those of a
/// [`RaggedMap`](crate::RaggedMap): what a page has of a sequence is a sequence of rows that ends somewhere
/// among those of all.
/// Pages begin so many rows one after the other; for heads before rows that is more than a page has.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedMap {
    /// What the driver encodes.
    pub map: TensorMap,
}

/// In what boxes every [`PagedMap`] of a launch is taken, and how far apart pages are. Only who encodes the
/// maps can say: on a device there is no way to make one, and a kernel's parameters have one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBoxes {
    rows: u32,
    pitch: u32,
}

impl PageBoxes {
    /// Boxes of `rows` rows, of a map that was encoded with them: they divide a stage's, and a page's, or
    /// there is no second page. Pages begin `pitch` rows one after the other.
    ///
    /// # Panics
    /// Where boxes have no row.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn new(rows: u32, pitch: u32) -> Self {
        assert!(rows > 0, "a box has a row");
        PageBoxes { rows, pitch }
    }

    /// Rows of a box.
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
