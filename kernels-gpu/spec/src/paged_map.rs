//! Tensor maps of paged KV caches, as kernels see them: plain data without padding, with equal bytes on both
//! sides.
use crate::TensorMap;

/// The tensor map of keys, or of values, in the pages of a [`Cache`](crate::Cache). The map has the
/// dimensions of a [`RaggedMap`](crate::RaggedMap), in which the rows of one sequence in one page take the
/// place of a sequence. Consecutive pages begin `pitch` rows apart ([`PageBoxes`]). In HND pages, in which
/// all rows of a head are contiguous, `pitch` is larger than the number of rows of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedMap {
    /// The encoded tensor map.
    pub map: TensorMap,
}

/// The rows of a TMA box of all [`PagedMap`]s of a launch, and the distance between pages. Only the host,
/// which encodes the tensor maps, can construct this type. It is a part of a kernel's parameters.
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
    /// Boxes of `rows` rows, for a tensor map that was encoded with such boxes. `rows` must divide a stage's
    /// rows. `rows` must also divide a page's rows, unless there is only one page. Pages begin `pitch` rows
    /// apart.
    ///
    /// # Panics
    /// Panics if `rows` is 0.
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

    /// Number of rows from the start of one page to the start of the next.
    #[inline(always)]
    pub const fn pitch(&self) -> u32 {
        self.pitch
    }
}
