//! KV caches in the caller's memory, and integers that only the device knows.
use super::{Index, TensorView};

/// The slot mapping: slots of new tokens in a KV cache, in device memory. Token `t` goes to row
/// `slots[t] % page` of page `slots[t] / page`. The kernel skips a slot that is negative or that the KV cache
/// lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots<M = u64> {
    /// Device address. A multiple of 4, or of 8 if `wide`.
    pub address: M,
    /// Number of elements.
    pub elements: u64,
    /// Whether slots are i64 instead of i32.
    pub wide: bool,
}

impl<M> Slots<M> {
    /// Creates slots: `elements` i32 from `address` on.
    pub const fn i32(address: M, elements: u64) -> Self {
        Slots { address, elements, wide: false }
    }

    /// Creates slots: `elements` i64 from `address` on.
    pub const fn i64(address: M, elements: u64) -> Self {
        Slots { address, elements, wide: true }
    }
}

/// The scale of an e4m3 KV cache, or the scales of an int8 KV cache. A key or value is the stored number
/// times the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum KvScale<M = u64> {
    /// A scale of 1.
    #[default]
    One,
    /// One scale, above 0.
    Value(f32),
    /// Scales in device memory, as f32.
    Device {
        /// Device address. A multiple of 4.
        address: M,
        /// Number of elements.
        elements: u64,
        /// Distance in elements from one sequence to the next sequence, and from one key head to the next key
        /// head. If a distance is 0, all sequences, or all heads, share a scale.
        strides: [i64; 2],
    },
    /// One scale for each row and key head, of an int8 KV cache. No other KV cache has such scales.
    Tokens(TokenScales<M>),
}

/// The scales of an int8 KV cache: one f32 for each row (token) and key head, in device memory. A key or
/// value is the stored integer times its row's scale, which is 0 or more. Slot `i` of all pages is row `i %
/// page` of page `i / page`, and has its scale `i * strides[0]` elements behind the first slot's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenScales<M = u64> {
    /// Device address. A multiple of 4.
    pub address: M,
    /// Number of elements.
    pub elements: u64,
    /// Distance in elements from one slot to the next slot, and from one key head to the next key head.
    pub strides: [i64; 2],
}

impl<M> TokenScales<M> {
    /// Creates contiguous scales, `[pages, page, heads]`, of which memory has `elements`.
    pub const fn contiguous(address: M, elements: u64, heads: usize) -> Self {
        TokenScales { address, elements, strides: [heads as i64, 1] }
    }

    /// Creates scales with these distances in elements: from slot to slot, and from head to head.
    pub const fn new(address: M, elements: u64, strides: [i64; 2]) -> Self {
        TokenScales { address, elements, strides }
    }
}

/// All pages of a KV cache, of any sequences. Keys and values are `[pages, page, heads, head_dim]`, with
/// `page` keys per page. A dense KV cache has one page per sequence. In a latent cache
/// ([`KvPages::latent`]), values are the first columns of keys.
///
/// Values may have other strides, and another number of columns, than keys. Prefill kernels then run, even
/// for few queries: decode kernels and appends need equal strides and equal numbers of columns.
///
/// | layout | view | |
/// |---|---|---|
/// | NHD: `[pages][page][heads][head_dim]` | [`TensorView::bshd`] | |
/// | HND: `[pages][heads][page][head_dim]` | [`TensorView::bhsd`] | faster |
/// | keys and values of a page beside each other | [`TensorView::interleaved`] | |
///
/// On pages of 16 keys, decode takes 0.4 to 0.7 % less time with HND than with NHD (H200,
/// docs/performance-log.md).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KvPages<M = u64> {
    /// Keys.
    pub keys: TensorView<M>,
    /// Values.
    pub values: TensorView<M>,
    /// Scales of keys and of values.
    pub scales: [KvScale<M>; 2],
}

impl<M> KvPages<M> {
    /// Creates pages with scales of 1.
    pub const fn new(keys: TensorView<M>, values: TensorView<M>) -> Self {
        KvPages { keys, values, scales: [KvScale::One, KvScale::One] }
    }

    /// Whether one index addresses keys and values.
    pub(crate) fn has_equal_strides(&self) -> bool {
        let KvPages { keys, values, .. } = self;
        (0..3).all(|dim| keys.shape[dim] == 1 || keys.strides[dim] == values.strides[dim])
    }

    /// Sets the strides of keys and of values, in elements: from one page, key, head and column to the next.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 4]) -> Self {
        (self.keys.strides, self.values.strides) = (strides, strides);
        self
    }

    /// Sets the scales of an e4m3 or int8 KV cache.
    #[must_use]
    pub fn scales(mut self, keys: KvScale<M>, values: KvScale<M>) -> Self {
        self.scales = [keys, values];
        self
    }
}

impl<M: Copy> KvPages<M> {
    /// Creates pages of an int8 KV cache: keys and values are [`DType::Int8`](crate::DType::Int8), and each
    /// row of a head has a scale. [`Append`](crate::request::Append) writes the integers and the scales:
    ///
    /// | row | scale | integers |
    /// |---|---|---|
    /// | of numbers | the largest magnitude / 127, in f32 | `x / scale`, rounded to nearest even, at most 127 in magnitude |
    /// | of zeros | 0 | 0 |
    /// | with an infinity or a NaN | NaN: attention to this row is NaN, as with a 16-bit cache | 0 |
    pub const fn int8(
        keys: TensorView<M>,
        values: TensorView<M>,
        k: TokenScales<M>,
        v: TokenScales<M>,
    ) -> Self {
        KvPages { keys, values, scales: [KvScale::Tokens(k), KvScale::Tokens(v)] }
    }

    /// Returns pages of a latent cache (MLA, DeepSeek-V2): `rows` is `[pages, page, 1, head_dim]`, one row
    /// per key for all query heads. The whole row is the key, and its first `head_dim_v` columns are the
    /// value. A kernel reads a row once for both.
    ///
    /// The up-projections stay the caller's. For a model with a latent of 512 columns and 64 rotary columns:
    ///
    /// | tensor | shape | content |
    /// |---|---|---|
    /// | `rows` | `[pages, page, 1, 576]` | the normalised latent, then the rotated key; [`Append::latent`](crate::request::Append::latent) writes it |
    /// | `q` | `[batch, queries, heads, 576]` | `q_nope W_UK` (absorbed, 512 columns), then the rotated `q_pe` |
    /// | `o` | `[batch, queries, heads, 512]` | multiply each head by its `W_UV` |
    ///
    /// The request must set a scale, because no default follows from 576 columns: DeepSeek's is `1 / sqrt(128
    /// + 64)`, times the square of YaRN's `mscale`.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, Mask, Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, o, rows, table, lengths] = [1, 2, 3, 4, 5].map(|n| n << 40);
    ///
    /// let (batch, heads, columns) = (8, 128, 512); // sequences of up to 512 pages of 64 keys
    /// let view = |address, width: usize| {
    ///     TensorView::bshd(address, (8 * 128 * width) as u64, DType::Bf16, [batch, 1, heads, width])
    /// };
    /// let rows = TensorView::bshd(rows, 1000 * 64 * 576, DType::Bf16, [1000, 64, 1, 576]);
    /// let (table, lengths) = (Index::new(table, 8 * 512), Index::new(lengths, 8));
    /// let cache = KvCache::paged(KvPages::latent(rows, 512), table, columns, lengths);
    /// let request = AttentionRequest::cached(view(q, 576), cache, view(o, 512))
    ///     .mask(Mask::Causal)
    ///     .scale(192f32.sqrt().recip())
    ///     .scratch(Scratch::Fastest);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// assert_eq!(plan(&request, h200)?.contract().symbol, "hopper_mla_bf16_d576_causal_64x64");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn latent(rows: TensorView<M>, head_dim_v: usize) -> Self {
        let mut values = rows;
        values.shape[3] = head_dim_v;
        Self::new(rows, values)
    }

    /// Returns pages of a latent cache of [`DType::E4m3Scaled`](crate::DType::E4m3Scaled): `rows` is `[pages,
    /// page, 1, 656]` in bytes, whatever its dtype of eight bits is. Queries are bf16 and have 576 columns.
    pub const fn latent_scaled(mut rows: TensorView<M>, head_dim_v: usize) -> Self {
        rows.dtype = crate::DType::E4m3Scaled;
        Self::latent(rows, head_dim_v)
    }
}

impl KvPages {
    /// Returns the number of columns of a latent cache's values. Returns `None` if keys and values have equal
    /// numbers of columns, or lie in different memory.
    pub const fn latent_columns(&self) -> Option<usize> {
        let [keys, values] = [self.keys.shape[3], self.values.shape[3]];
        if self.keys.address == self.values.address && values < keys { Some(values) } else { None }
    }
}

/// The assignment of pages to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paged<M = u64> {
    /// One page per sequence. Each page has room for the longest sequence.
    Dense {
        /// The page of each sequence (`cache_batch_idx`); by default sequence `b` is page `b`.
        rows: Option<Index<M>>,
    },
    /// The block table: one row of page indices per sequence. Key `j` of sequence `b` is in page
    /// `entries[b * stride + j / page]`. Entries behind a sequence's last page do not matter.
    Table {
        /// The page indices.
        entries: Index<M>,
        /// Entries per row.
        columns: usize,
        /// Number of entries from one row to the next row: `columns` or more, unless there is one sequence.
        stride: usize,
    },
}

/// A KV cache. Lengths and page indices live on the device and may change between launches of one plan,
/// within the bounds that the host states here.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KvCache<M = u64> {
    /// Keys and values.
    pub pages: KvPages<M>,
    /// The assignment of pages to sequences.
    pub paged: Paged<M>,
    /// Keys of each sequence, including this step's. The kernel clamps them to 0..=`max_k`.
    pub lengths: Index<M>,
    /// Maximum number of keys per sequence.
    pub max_k: usize,
    /// Maximum number of keys of all sequences together, if known.
    pub total_k: Option<usize>,
}

impl<M: Copy> KvCache<M> {
    /// Returns a dense KV cache, one page per sequence: `[batch, capacity, heads, head_dim]`.
    pub const fn dense(pages: KvPages<M>, lengths: Index<M>) -> Self {
        let (paged, max_k) = (Paged::Dense { rows: None }, pages.keys.shape[1]);
        KvCache { pages, paged, lengths, max_k, total_k: None }
    }

    /// Selects page `rows[b]` for sequence `b` (`cache_batch_idx`).
    #[must_use]
    pub const fn rows(mut self, rows: Index<M>) -> Self {
        self.paged = Paged::Dense { rows: Some(rows) };
        self
    }

    /// Returns a paged KV cache. The block table is contiguous, with `columns` entries per sequence.
    pub const fn paged(pages: KvPages<M>, entries: Index<M>, columns: usize, lengths: Index<M>) -> Self {
        let max_k = columns.saturating_mul(pages.keys.shape[1]);
        let paged = Paged::Table { entries, columns, stride: columns };
        KvCache { pages, paged, lengths, max_k, total_k: None }
    }

    /// Sets the distance of the block table's rows, in entries: `columns` or more.
    #[must_use]
    pub const fn table_stride(mut self, numbers: usize) -> Self {
        if let Paged::Table { stride, .. } = &mut self.paged {
            *stride = numbers;
        }
        self
    }

    /// Sets the maximum number of keys per sequence. The planner assumes this number.
    #[must_use]
    pub const fn max_k(mut self, keys: usize) -> Self {
        self.max_k = keys;
        self
    }

    /// Sets the maximum number of keys of all sequences together. The planner selects prefill kernels by the
    /// mean number per sequence. Without this maximum, it assumes `max_k` keys per sequence.
    #[must_use]
    pub const fn total_k(mut self, keys: usize) -> Self {
        self.total_k = Some(keys);
        self
    }
}
