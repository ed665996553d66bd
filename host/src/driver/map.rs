//! Descriptions of tensor maps: how TMA copies a tensor.
use crate::{DType, Error};
use spec::RaggedMap;

/// A tensor in device memory and the box that one TMA instruction copies.
/// [`Driver::tensor_map`](crate::Driver::tensor_map) encodes both as a tensor map. TMA reads elements of a
/// box outside the tensor as 0 and does not write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapDescription {
    /// Device address of the first element. A multiple of 16.
    pub address: u64,
    /// Strides of row, head and batch in bytes: multiples of 16, above 0 and below 2^40.
    pub strides: [u64; 3],
    /// The tensor's numbers of columns, rows, heads and batches.
    pub extents: [u32; 4],
    /// The box's numbers of columns and rows. A box has one head and one batch. A row of a box has 64 or 128
    /// bytes. Shared memory holds the box with the 64-byte or the 128-byte swizzle.
    pub box_shape: [u32; 2],
    /// Element type: f16, bf16 or e4m3.
    pub dtype: DType,
    /// The place where TMA sees the tensor's end.
    pub kind: MapKind,
}

/// The place where TMA sees a tensor's end. TMA reads 0 behind the end and does not write there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MapKind {
    /// Each batch ends behind its last row.
    Whole,
    /// The tensor ends where a varlen sequence ends. The coordinates of a [`RaggedMap`] name this row. The
    /// tensor has one batch and at most [`RaggedMap::END`] rows, which are less than 2^34 bytes apart.
    Ragged,
    /// A page ends where a sequence ends in it. The coordinates of a [`PagedMap`](spec::PagedMap) name this
    /// row. The batches are pages. The distance of two pages is a whole number of rows, and all pages
    /// together have at most [`RaggedMap::END`] rows.
    Paged,
}

/// The arguments with which the driver encodes a [`MapDescription`]. Dimensions are innermost first; only the
/// first `rank` of them count.
pub(super) struct Encoding {
    pub rank: usize,
    pub dims: [u64; 5],
    /// The strides in bytes of all dimensions except the innermost.
    pub strides: [u64; 4],
    pub box_dims: [u32; 5],
}

impl MapDescription {
    /// Two adjacent rows of a [`RaggedMap`] must be less than this number of bytes apart.
    pub(crate) const APART: u64 = 1 << 34;

    /// Returns the number of bytes of a box's row.
    pub const fn row_bytes(&self) -> u32 {
        self.box_shape[0] * self.dtype.bytes() as u32
    }

    /// Maximum number of rows of a box.
    const MOST_ROWS: u32 = 256;

    /// Checks that the tensor map can be encoded.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if a field contradicts its documentation, or [`Error::Unsupported`] for an
    /// element type that no kernel copies by tensor maps.
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |what, value: String, expected: &str| Err(Error::invalid(what, value, expected));
        let MapDescription { address, strides, extents, box_shape: [columns, rows], dtype, kind } = *self;
        if !matches!(dtype, DType::F16 | DType::Bf16 | DType::E4m3) {
            let feature = format_args!("a tensor map of {}", dtype.name());
            return Err(Error::unsupported(
                feature,
                "kernels copy f16, bf16 and e4m3 by tensor maps; convert it",
            ));
        }
        if !address.is_multiple_of(16) {
            return invalid("tensor_map.address", format!("{address:#x}"), "it must be a multiple of 16");
        }
        if strides.iter().any(|stride| *stride == 0 || *stride >= 1 << 40 || !stride.is_multiple_of(16)) {
            let expected = "each must be a multiple of 16 bytes, above 0 and below 2^40";
            return invalid("tensor_map.strides", format!("{strides:?}"), expected);
        }
        if extents.contains(&0) {
            return invalid("tensor_map.extents", format!("{extents:?}"), "each must be 1 or more");
        }
        let row_bytes = u64::from(columns) * dtype.bytes() as u64;
        if ![64, 128].contains(&row_bytes) || rows == 0 || rows > Self::MOST_ROWS {
            let expected = "columns must take 64 or 128 bytes, rows must be 1 to 256";
            return invalid("tensor_map.box_shape", format!("{:?}", self.box_shape), expected);
        }
        let is_ragged = || strides[0] < Self::APART && extents[1] <= RaggedMap::END && extents[3] == 1;
        match kind {
            MapKind::Ragged if !is_ragged() => {
                let expected = "a ragged map must have one batch of at most 2^30 rows, less than 2^34 bytes \
                                apart";
                invalid("tensor_map.kind", format!("{self:?}"), expected)
            }
            MapKind::Paged if !self.is_of_rows() => {
                let expected = "the pages of a paged map must be a whole number of rows apart, with at most \
                                2^30 rows in all, less than 2^34 bytes apart";
                invalid("tensor_map.kind", format!("{self:?}"), expected)
            }
            _ => Ok(()),
        }
    }

    /// Returns the distance of two batches, in rows.
    pub(crate) fn pitch(&self) -> u32 {
        let [row, _, batch] = self.strides;
        (batch / row.max(1)) as u32
    }

    /// Returns the number of rows of all batches together.
    fn rows_of_pages(&self) -> u64 {
        let [_, rows, _, batches] = self.extents.map(u64::from);
        u64::from(self.pitch()) * batches.saturating_sub(1) + rows
    }

    /// Returns whether the coordinates of a [`MapKind::Paged`] reach all rows.
    pub(crate) fn is_of_rows(&self) -> bool {
        let [row, _, batch] = self.strides;
        let whole = self.extents[3] == 1
            || batch.is_multiple_of(row) && batch / row.max(1) <= u64::from(RaggedMap::END);
        whole && row < Self::APART && self.rows_of_pages() <= u64::from(RaggedMap::END)
    }

    /// Checks the description, and returns the arguments for the driver and the simulator.
    ///
    /// # Errors
    /// Returns the errors of [`MapDescription::check`].
    pub(super) fn encoding(&self) -> Result<Encoding, Error> {
        self.check()?;
        let ([columns, rows, heads, batches], [row, head, batch]) =
            (self.extents.map(u64::from), self.strides);
        let box_dims = [self.box_shape[0], self.box_shape[1], 1, 1, 1];
        let ragged = |rows| {
            let end = u64::from(RaggedMap::END);
            (5, [columns, end, heads, rows + 1, end + 1], [row, head, row, RaggedMap::back(row)])
        };
        let (rank, dims, strides) = match self.kind {
            MapKind::Whole => (4, [columns, rows, heads, batches, 1], [row, head, batch, 0]),
            MapKind::Ragged => ragged(rows),
            MapKind::Paged => ragged(self.rows_of_pages()),
        };
        Ok(Encoding { rank, dims, strides, box_dims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The coordinates of row `i` of a sequence give the row's address. TMA copies the row only if the
    /// sequence has a row `i`.
    #[test]
    fn a_ragged_tensor_ends_with_its_sequence() {
        for row_bytes in [128, 4096, 1 << 26] {
            let map = MapDescription {
                address: 1 << 40,
                strides: [row_bytes, 256, 1 << 20],
                extents: [64, 1000, 2, 1],
                box_shape: [64, 64],
                dtype: DType::F16,
                kind: MapKind::Ragged,
            };
            let Encoding { dims, strides, .. } = map.encoding().expect("valid");
            assert!(strides.iter().all(|stride| *stride < 1 << 40 && stride.is_multiple_of(16)));
            for (first, rows) in [(0, 1000), (0, 0), (1000, 0), (7, 1), (999, 1), (100, 300)] {
                for i in 0..rows + 300 {
                    let end = u64::from(RaggedMap::END);
                    let at = [end - rows + i, 1, first + rows, end];
                    let parts = at.iter().zip(strides).map(|(at, stride)| at.wrapping_mul(stride));
                    let offset = parts.fold(0u64, u64::wrapping_add);
                    assert_eq!(offset, (first + i) * row_bytes + 256);
                    let exists = at.iter().zip(&dims[1..]).all(|(at, extent)| at < extent);
                    assert_eq!(exists, i < rows, "row {i} of {rows}");
                }
            }
        }
    }

    /// The coordinates of row `i` of a page give the row's address. TMA copies the row only if the page's
    /// sequence has it.
    #[test]
    fn a_page_ends_with_its_sequence() {
        let map = |row, head, batch| MapDescription {
            address: 1 << 40,
            strides: [row, head, batch],
            extents: [64, 16, 2, 5],
            box_shape: [64, 16],
            dtype: DType::F16,
            kind: MapKind::Paged,
        };
        for (row, head, batch) in [(256, 256 * 16, 256 * 32), (512, 256, 512 * 16), (1 << 20, 256, 1 << 30)] {
            let map = map(row, head, batch);
            assert!(map.is_of_rows());
            let Encoding { rank, dims, strides, box_dims } = map.encoding().expect("valid");
            assert_eq!((rank, box_dims), (5, [64, 16, 1, 1, 1]));
            let (end, pitch) = (u64::from(RaggedMap::END), u64::from(map.pitch()));
            for (own, i) in (0..=16).flat_map(|own| (0..16).map(move |i| (own, i))) {
                let at = [end - own + i, 1, 4 * pitch + own, end];
                let parts = at.iter().zip(strides).map(|(at, stride)| at.wrapping_mul(stride));
                assert_eq!(parts.fold(0u64, u64::wrapping_add), i * row + head + 4 * batch);
                let exists = at.iter().zip(&dims[1..]).all(|(at, extent)| at < extent);
                assert_eq!(exists, i < own, "row {i} of {own}");
            }
        }
        let odd = MapDescription { strides: [512, 256, 512 * 16 + 256], ..map(512, 256, 512 * 16) };
        assert!(!odd.is_of_rows(), "pages are not whole rows apart");
    }
    /// Descriptions are public data. An invalid one is refused, and the error names its field.
    #[test]
    fn what_is_no_map_is_refused() {
        let valid = MapDescription {
            address: 1 << 40,
            strides: [256, 128, 1 << 20],
            extents: [64, 1000, 2, 3],
            box_shape: [64, 64],
            dtype: DType::Bf16,
            kind: MapKind::Whole,
        };
        assert!(valid.encoding().is_ok());
        let far = [1 << 34, 16, 1 << 35];
        let cases = [
            ("tensor_map.address", MapDescription { address: 8, ..valid }),
            ("tensor_map.strides", MapDescription { strides: [0; 3], ..valid }),
            ("tensor_map.strides", MapDescription { strides: [256, 128, 1 << 40], ..valid }),
            ("tensor_map.strides", MapDescription { strides: [u64::MAX; 3], ..valid }),
            ("tensor_map.strides", MapDescription { strides: [256, 8, 256], ..valid }),
            ("tensor_map.extents", MapDescription { extents: [0; 4], kind: MapKind::Paged, ..valid }),
            ("tensor_map.extents", MapDescription { extents: [64, 1000, 2, 0], ..valid }),
            ("tensor_map.box_shape", MapDescription { box_shape: [u32::MAX; 2], ..valid }),
            ("tensor_map.box_shape", MapDescription { box_shape: [64, 0], ..valid }),
            ("tensor_map.box_shape", MapDescription { box_shape: [48, 64], ..valid }),
            ("tensor map of f32", MapDescription { dtype: DType::F32, ..valid }),
            ("tensor_map.kind", MapDescription { kind: MapKind::Ragged, ..valid }),
            (
                "tensor_map.kind",
                MapDescription { kind: MapKind::Ragged, strides: far, extents: [64, 2, 1, 1], ..valid },
            ),
            (
                "tensor_map.kind",
                MapDescription { kind: MapKind::Ragged, extents: [64, u32::MAX, 1, 1], ..valid },
            ),
            ("tensor_map.kind", MapDescription { kind: MapKind::Paged, strides: far, ..valid }),
            ("tensor_map.kind", MapDescription { kind: MapKind::Paged, extents: [u32::MAX; 4], ..valid }),
            (
                "tensor_map.kind",
                MapDescription { kind: MapKind::Paged, strides: [256, 128, (1 << 20) + 16], ..valid },
            ),
        ];
        for (field, map) in cases {
            let error = map.encoding().err().unwrap_or_else(|| panic!("{map:?} is encoded"));
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
    }
}
