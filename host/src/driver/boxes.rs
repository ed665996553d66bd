//! Tensors as a copy engine moves them.
use crate::DType;
use spec::RaggedMap;

/// A tensor in device memory, and the boxes of it that Hopper's copy engine moves: what
/// [`Driver::tensor_map`](crate::Driver::tensor_map) encodes. What a box has beyond the tensor reads as 0 and
/// is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boxes {
    /// Device address of the first element. A multiple of 16.
    pub address: u64,
    /// Bytes from one row, head and batch to the next: multiples of 16 below 2^40, none 0.
    pub strides: [u64; 3],
    /// Columns, rows, heads and batches of the tensor.
    pub extents: [u32; 4],
    /// Columns and rows of a box, which is of one head and batch. Its rows have 64 or 128 bytes, and lie
    /// swizzled by as many in shared memory.
    pub of: [u32; 2],
    /// Element type: f16 or bf16.
    pub dtype: DType,
    /// Where the tensor ends.
    pub kind: MapKind,
}

/// Where a tensor ends for a copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MapKind {
    /// Where its batches do.
    Whole,
    /// One of one batch: where a sequence among its rows ends, as a [`RaggedMap`] says. Rows are below 2^34
    /// bytes apart, and at most [`RaggedMap::END`].
    Ragged,
    /// One whose batches are pages: where a sequence ends in a page, as a [`PagedMap`](spec::PagedMap) says.
    /// Pages are whole rows apart, and all of them at most [`RaggedMap::END`] rows.
    Paged,
}

/// What a driver is told of [`Boxes`]: its dimensions, innermost first, of which the first `rank` count.
pub(super) struct Encoding {
    pub rank: usize,
    pub dims: [u64; 5],
    /// Of all dimensions but the innermost.
    pub strides: [u64; 4],
    pub box_dims: [u32; 5],
}

impl Boxes {
    /// Bytes between rows below which a [`RaggedMap`] says where they end.
    pub(crate) const APART: u64 = 1 << 34;

    /// Bytes of a box's row.
    pub const fn row_bytes(&self) -> u32 {
        self.of[0] * self.dtype.bytes() as u32
    }

    /// Rows from one batch to the next.
    pub(crate) fn pitch(&self) -> u32 {
        let [row, _, batch] = self.strides;
        (batch / row.max(1)) as u32
    }

    /// Rows of all batches, as if they were one.
    fn rows_of_pages(&self) -> u64 {
        let [_, rows, _, batches] = self.extents.map(u64::from);
        u64::from(self.pitch()) * (batches - 1) + rows
    }

    /// Whether a [`MapKind::Paged`] can say where its rows are.
    pub(crate) fn is_of_rows(&self) -> bool {
        let [row, _, batch] = self.strides;
        let whole =
            self.extents[3] == 1 || batch.is_multiple_of(row) && batch / row <= u64::from(RaggedMap::END);
        whole && row < Self::APART && self.rows_of_pages() <= u64::from(RaggedMap::END)
    }

    /// As the driver and the simulator take them.
    pub(super) fn encoding(&self) -> Encoding {
        let ([columns, rows, heads, batches], [row, head, batch]) =
            (self.extents.map(u64::from), self.strides);
        let box_dims = [self.of[0], self.of[1], 1, 1, 1];
        let ragged = |rows| {
            let end = u64::from(RaggedMap::END);
            (5, [columns, end, heads, rows + 1, end + 1], [row, head, row, RaggedMap::back(row)])
        };
        let (rank, dims, strides) = match self.kind {
            MapKind::Whole => (4, [columns, rows, heads, batches, 1], [row, head, batch, 0]),
            MapKind::Ragged => ragged(rows),
            MapKind::Paged => ragged(self.rows_of_pages()),
        };
        Encoding { rank, dims, strides, box_dims }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row `i` of a sequence lies where it does among all rows, and exists exactly if the sequence has it.
    #[test]
    fn a_ragged_tensor_ends_with_its_sequence() {
        for row_bytes in [128, 4096, 1 << 26] {
            let boxes = Boxes {
                address: 1 << 40,
                strides: [row_bytes, 256, 1 << 20],
                extents: [64, 1000, 2, 1],
                of: [64, 64],
                dtype: DType::F16,
                kind: MapKind::Ragged,
            };
            let Encoding { dims, strides, .. } = boxes.encoding();
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

    /// Row `i` of a page lies where it does, and exists exactly if the sequence has it.
    #[test]
    fn a_page_ends_with_its_sequence() {
        let boxes = |row, head, batch| Boxes {
            address: 1 << 40,
            strides: [row, head, batch],
            extents: [64, 16, 2, 5],
            of: [64, 16],
            dtype: DType::F16,
            kind: MapKind::Paged,
        };
        for (row, head, batch) in [(256, 256 * 16, 256 * 32), (512, 256, 512 * 16), (1 << 20, 256, 1 << 30)] {
            let boxes = boxes(row, head, batch);
            assert!(boxes.is_of_rows());
            let Encoding { rank, dims, strides, box_dims } = boxes.encoding();
            assert_eq!((rank, box_dims), (5, [64, 16, 1, 1, 1]));
            let (end, pitch) = (u64::from(RaggedMap::END), u64::from(boxes.pitch()));
            for (own, i) in (0..=16).flat_map(|own| (0..16).map(move |i| (own, i))) {
                let at = [end - own + i, 1, 4 * pitch + own, end];
                let parts = at.iter().zip(strides).map(|(at, stride)| at.wrapping_mul(stride));
                assert_eq!(parts.fold(0u64, u64::wrapping_add), i * row + head + 4 * batch);
                let exists = at.iter().zip(&dims[1..]).all(|(at, extent)| at < extent);
                assert_eq!(exists, i < own, "row {i} of {own}");
            }
        }
        let odd = Boxes { strides: [512, 256, 512 * 16 + 256], ..boxes(512, 256, 512 * 16) };
        assert!(!odd.is_of_rows(), "pages are not whole rows apart");
    }
}
