//! Caches of keys and values in somebody else's memory, and integers beside them that only the device knows.
use super::{Index, TensorView};
use crate::DType;

/// Where the rows of new tokens go in a cache, in device memory: token `t` goes to row `slots[t] % page` of
/// page `slots[t] / page`. One that is negative, or that the cache does not have, is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Device address. A multiple of 4, or of 8 where they are `wide`.
    pub address: u64,
    /// How many there are.
    pub elements: u64,
    /// Whether they are i64, and not i32.
    pub wide: bool,
}

impl Slots {
    /// So many i32 from `address` on.
    pub const fn i32(address: u64, elements: u64) -> Self {
        Slots { address, elements, wide: false }
    }

    /// So many i64 from `address` on.
    pub const fn i64(address: u64, elements: u64) -> Self {
        Slots { address, elements, wide: true }
    }
}

/// The keys or the values of a cache: its shape is always `[pages, page, heads, head_dim]`, with `page` keys
/// in a page, whatever the layout: layouts are strides. A cache without pages has a page for each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageView {
    /// Device address of element `[0, 0, 0, 0]`. A multiple of 16.
    pub address: u64,
    /// Elements of the buffer from `address` on: strides may reach no further.
    pub elements: u64,
    /// Element type; [`DType::E4m3`] too.
    pub dtype: DType,
    /// `[pages, page, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Elements from one page, key and head to the next: multiples of 16 bytes; those of extents of 1 are
    /// ignored. The last is 1.
    pub strides: [i64; 4],
}

impl PageView {
    /// A view with any strides. Nothing is checked here: planning does.
    pub const fn new(
        address: u64,
        elements: u64,
        dtype: DType,
        shape: [usize; 4],
        strides: [i64; 4],
    ) -> Self {
        PageView { address, elements, dtype, shape, strides }
    }

    /// Contiguous `[pages][page][heads][head_dim]`.
    pub const fn nhd(address: u64, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let TensorView { strides, .. } = TensorView::bshd(address, elements, dtype, shape);
        Self::new(address, elements, dtype, shape, strides)
    }

    /// Contiguous `[pages][heads][page][head_dim]`. `shape` is `[pages, page, heads, head_dim]` here too.
    /// Where the choice is free: decoding on pages of 16 keys takes 0.4 to 0.7 % less than on
    /// [`nhd`](Self::nhd) (H200, docs/performance-log.md).
    pub const fn hnd(address: u64, elements: u64, dtype: DType, shape: [usize; 4]) -> Self {
        let TensorView { strides, .. } = TensorView::bhsd(address, elements, dtype, shape);
        Self::new(address, elements, dtype, shape, strides)
    }

    /// Keys and values of one contiguous buffer: `[pages][2][page][heads][head_dim]`, or with `hnd`
    /// `[pages][2][heads][page][head_dim]`.
    pub const fn interleaved(
        address: u64,
        elements: u64,
        dtype: DType,
        shape: [usize; 4],
        hnd: bool,
    ) -> [Self; 2] {
        let mut keys = match hnd {
            false => Self::nhd(address, elements, dtype, shape),
            true => Self::hnd(address, elements, dtype, shape),
        };
        let half = keys.strides[0];
        keys.strides[0] = half.wrapping_mul(2);
        let mut values = keys;
        values.address = address.wrapping_add((half as u64).wrapping_mul(dtype.bytes() as u64));
        values.elements = elements.saturating_sub(half as u64);
        [keys, values]
    }

    /// The same as a tensor whose batches are pages.
    pub(crate) const fn tensor(&self) -> TensorView {
        TensorView::new(self.address, self.elements, self.dtype, self.shape, self.strides)
    }
}

/// What a stored number of an e4m3 cache stands for: the number times the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum KvScale {
    /// Itself.
    #[default]
    One,
    /// One scale, above 0.
    Value(f32),
    /// f32 in device memory.
    Device {
        /// Device address. A multiple of 4.
        address: u64,
        /// How many there are.
        elements: u64,
        /// Elements from one sequence, and from one key head, to the next; 0 where they share a scale.
        strides: [i64; 2],
    },
}

/// Pages of keys and values, whoever's they are. Keys and values have the same shape and strides.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KvPages {
    /// Keys.
    pub keys: PageView,
    /// Values.
    pub values: PageView,
    /// What the numbers of keys and of values stand for.
    pub scales: [KvScale; 2],
}

impl KvPages {
    /// Numbers that stand for themselves.
    pub const fn new(keys: PageView, values: PageView) -> Self {
        KvPages { keys, values, scales: [KvScale::One; 2] }
    }

    /// Numbers of an e4m3 cache that stand for themselves times a scale.
    #[must_use]
    pub const fn scales(mut self, keys: KvScale, values: KvScale) -> Self {
        self.scales = [keys, values];
        self
    }
}

/// Which pages are whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paged {
    /// A page for each sequence, as long as the longest.
    Dense {
        /// The page of each sequence; by default those of their own numbers.
        rows: Option<Index>,
    },
    /// A row of page numbers for each sequence: key `j` of sequence `b` is in page `entries[b * stride + j /
    /// page]`. Numbers behind a sequence's last page do not matter.
    Table {
        /// The numbers.
        entries: Index,
        /// Numbers of a row.
        columns: usize,
        /// Numbers from one row to the next.
        stride: usize,
    },
}

/// The keys and values of some sequences. Lengths and page numbers are the device's: they may change between
/// launches of one plan, within what the host has said here.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KvCache {
    /// Keys and values.
    pub pages: KvPages,
    /// Which pages are whose.
    pub paged: Paged,
    /// Keys of each sequence, those of this step included; more than `max_k` count as `max_k`, less than 0 as
    /// none.
    pub lengths: Index,
    /// Most keys of a sequence.
    pub max_k: usize,
    /// Most keys of all sequences together, where that is known.
    pub total_k: Option<usize>,
}

impl KvCache {
    /// A page for each sequence: `[batch, capacity, heads, head_dim]`.
    pub const fn dense(pages: KvPages, lengths: Index) -> Self {
        let (paged, max_k) = (Paged::Dense { rows: None }, pages.keys.shape[1]);
        KvCache { pages, paged, lengths, max_k, total_k: None }
    }

    /// The same where sequence `b` is page `rows[b]`.
    #[must_use]
    pub const fn rows(mut self, rows: Index) -> Self {
        self.paged = Paged::Dense { rows: Some(rows) };
        self
    }

    /// Pages by a table, `columns` numbers a sequence, contiguous.
    pub const fn paged(pages: KvPages, entries: Index, columns: usize, lengths: Index) -> Self {
        let max_k = columns.saturating_mul(pages.keys.shape[1]);
        let paged = Paged::Table { entries, columns, stride: columns };
        KvCache { pages, paged, lengths, max_k, total_k: None }
    }

    /// The same with rows of the table so many numbers apart.
    #[must_use]
    pub const fn table_stride(mut self, numbers: usize) -> Self {
        if let Paged::Table { stride, .. } = &mut self.paged {
            *stride = numbers;
        }
        self
    }

    /// No sequence has more keys than these: plans are made for them.
    #[must_use]
    pub const fn max_k(mut self, keys: usize) -> Self {
        self.max_k = keys;
        self
    }

    /// All sequences together have no more keys than these. Which kernel is the faster for many queries
    /// follows from how many they are on the average: where nobody says, as many as tables have room for.
    #[must_use]
    pub const fn total_k(mut self, keys: usize) -> Self {
        self.total_k = Some(keys);
        self
    }
}
