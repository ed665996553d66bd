//! KV caches in cudarc's slices.
use super::memory::{Integers, Memory, MemoryMut, Number, PerHead, StreamGuards};
use crate::request::{KvCache, KvPages, KvScale, TensorView, TokenScales};
use crate::{DType, Error};

/// The scale of an e4m3 cache: a stored number times the scale is the value. Launches only read it.
#[derive(Clone, Copy, Default)]
pub enum Scale<'a> {
    /// 1.
    #[default]
    One,
    /// One scale for all numbers, above 0.
    Value(f32),
    /// One scale per key head, or per sequence and key head, in device memory.
    Heads(PerHead<'a>),
}

/// The scales of keys and of values. `M` is the memory of an int8 cache's scales, which an append writes.
#[derive(Clone, Copy)]
enum Scales<'a, M> {
    Of([Scale<'a>; 2]),
    /// One scale per row and key head, contiguous `[pages, page, heads]`.
    Tokens([M; 2]),
}

const NAMES: [&str; 2] = ["cache.k_scale", "cache.v_scale"];

impl<'a, M> Scales<'a, M> {
    const ONE: Self = Scales::Of([Scale::One; 2]);

    /// Returns the scales of `heads` key heads. `take` holds the memory of an int8 cache's scales.
    fn on<'t, const MOST: usize>(
        self,
        guards: &mut StreamGuards<'t, MOST>,
        heads: usize,
        take: impl Fn(&mut StreamGuards<'t, MOST>, &'static str, M) -> Result<(u64, u64), Error>,
    ) -> Result<[KvScale; 2], Error>
    where
        'a: 't,
    {
        Ok(match self {
            Scales::Of([k, v]) => [k.on(guards, NAMES[0])?, v.on(guards, NAMES[1])?],
            Scales::Tokens([k, v]) => {
                let memory = [take(guards, NAMES[0], k)?, take(guards, NAMES[1], v)?];
                memory.map(|(at, elements)| KvScale::Tokens(TokenScales::contiguous(at, elements, heads)))
            }
        })
    }
}

impl<'a> Scale<'a> {
    fn on<const MOST: usize>(
        self,
        guards: &mut StreamGuards<'a, MOST>,
        name: &'static str,
    ) -> Result<KvScale, Error> {
        Ok(match self {
            Scale::One => KvScale::One,
            Scale::Value(value) => KvScale::Value(value),
            Scale::Heads(PerHead { data, strides }) => {
                let (address, elements) = guards.read(name, data)?;
                KvScale::Device { address, elements, strides }
            }
        })
    }
}

/// The layout of keys and of values: `[pages, page, heads, head_dim]`.
#[derive(Clone, Copy)]
struct Layout {
    shape: [usize; 4],
    strides: [i64; 4],
    /// Columns and strides of values in a buffer of their own, if they are not those of keys.
    of_values: Option<(usize, [i64; 4])>,
    /// Where values lie.
    values: Values,
}

/// Where the values of pages lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// In a separate buffer.
    Apart,
    /// The values of each page follow the page's keys, in one buffer.
    Interleaved,
    /// The first columns of each key are its value. The number is the number of these columns.
    Latent(usize),
}

impl Layout {
    fn new(shape: [usize; 4], values: Values) -> Self {
        let one = TensorView::bshd(0, 0, DType::F16, shape);
        Layout { shape, strides: one.strides, of_values: None, values }.doubled()
    }

    /// Returns the layout with space for interleaved values.
    fn doubled(mut self) -> Self {
        self.strides[0] = self.strides[0].saturating_mul(1 + i64::from(self.values == Values::Interleaved));
        self
    }

    fn hnd(self) -> Self {
        Layout { strides: TensorView::bhsd(0, 0, DType::F16, self.shape).strides, ..self }.doubled()
    }

    /// Returns the views of keys and values, in two buffers or in one.
    fn views<C: Number>(&self, keys: (u64, u64), values: Option<(u64, u64)>) -> KvPages {
        let view = |(at, elements)| TensorView::new(at, elements, C::DTYPE, self.shape, self.strides);
        let behind = (self.strides[0] / 2).max(0) as u64;
        let shared = || {
            let bytes = behind.saturating_mul(C::DTYPE.bytes() as u64);
            (keys.0.saturating_add(bytes), keys.1.saturating_sub(behind))
        };
        match self.values {
            Values::Latent(columns) => KvPages::latent(view(keys), columns),
            Values::Apart | Values::Interleaved => {
                let mut values = view(values.unwrap_or_else(shared));
                if let Some((columns, strides)) = self.of_values {
                    (values.shape[3], values.strides) = (columns, strides);
                }
                KvPages::new(view(keys), values)
            }
        }
    }
}

/// Layout setters for [`Pages`] and [`PagesMut`].
macro_rules! layouts {
    () => {
        /// Makes each page a contiguous `[heads][page][head_dim]`. The shape stays `[pages, page, heads,
        /// head_dim]`.
        pub fn hnd(self) -> Self {
            Self { layout: self.layout.hnd(), ..self }
        }

        /// Sets the strides of keys and of values, in elements: from one page, key, head and column to the
        /// next. Interleaved values begin half a page stride after their keys.
        pub fn strides(self, strides: [i64; 4]) -> Self {
            Self { layout: Layout { strides, ..self.layout }, ..self }
        }

        /// Sets the number of columns of values in a buffer of their own, and their strides. Kernels for
        /// prefill take values that differ from keys ([`KvPages`]); an append takes none.
        pub fn values(self, head_dim_v: usize, strides: [i64; 4]) -> Self {
            Self { layout: Layout { of_values: Some((head_dim_v, strides)), ..self.layout }, ..self }
        }

        /// Sets the scales of the keys and of the values of an e4m3 cache.
        pub fn scales(self, keys: Scale<'a>, values: Scale<'a>) -> Self {
            Self { scales: Scales::Of([keys, values]), ..self }
        }
    };
}

/// All pages of a KV cache, for reading. Elements have the queries' dtype, or are `u8` (e4m3) or `i8`
/// ([`Pages::token_scales`]).
#[derive(Clone, Copy)]
#[must_use]
pub struct Pages<'a, C> {
    keys: &'a dyn Memory<C>,
    /// `None` if the values are in the buffer of keys.
    values: Option<&'a dyn Memory<C>>,
    layout: Layout,
    scales: Scales<'a, &'a dyn Memory<f32>>,
}

impl<'a, C: Number> Pages<'a, C> {
    /// Creates pages from two contiguous buffers `[pages, page, heads, head_dim]`, one of keys and one of
    /// values. A dense KV cache has one page per sequence.
    pub fn new(keys: &'a impl Memory<C>, values: &'a impl Memory<C>, shape: [usize; 4]) -> Self {
        let layout = Layout::new(shape, Values::Apart);
        Pages { keys, values: Some(values), layout, scales: Scales::ONE }
    }

    /// Creates pages with keys and values in one contiguous buffer, `[pages][2][page][heads][head_dim]`. With
    /// [`Pages::hnd`], the buffer is `[pages][2][heads][page][head_dim]`. The shape stays `[pages, page,
    /// heads, head_dim]`.
    pub fn interleaved(both: &'a impl Memory<C>, shape: [usize; 4]) -> Self {
        let layout = Layout::new(shape, Values::Interleaved);
        Pages { keys: both, values: None, layout, scales: Scales::ONE }
    }

    /// Creates the pages of a latent cache (MLA), contiguous `[pages, page, 1, head_dim]`. The first
    /// `head_dim_v` columns of a key are its value. See [`KvPages::latent`].
    pub fn latent(rows: &'a impl Memory<C>, shape: [usize; 4], head_dim_v: usize) -> Self {
        let layout = Layout::new(shape, Values::Latent(head_dim_v));
        Pages { keys: rows, values: None, layout, scales: Scales::ONE }
    }

    /// Sets the scales of an int8 cache, which the kernel reads: contiguous, `[pages, page, heads]` of keys
    /// and of values.
    pub fn token_scales(self, keys: &'a impl Memory<f32>, values: &'a impl Memory<f32>) -> Self {
        Pages { scales: Scales::Tokens([keys, values]), ..self }
    }

    layouts!();

    fn on<const MOST: usize>(&self, guards: &mut StreamGuards<'a, MOST>) -> Result<KvPages, Error> {
        let keys = guards.read("cache.keys", self.keys)?;
        let values = self.values.map(|values| guards.read("cache.values", values)).transpose()?;
        let [k, v] = self.scales.on(guards, self.layout.shape[2], StreamGuards::read)?;
        Ok(self.layout.views::<C>(keys, values).scales(k, v))
    }
}

/// All pages of a KV cache, for writing.
#[must_use]
pub struct PagesMut<'a, C> {
    keys: &'a mut dyn MemoryMut<C>,
    /// `None` if the values are in the buffer of keys.
    values: Option<&'a mut dyn MemoryMut<C>>,
    layout: Layout,
    scales: Scales<'a, &'a mut dyn MemoryMut<f32>>,
}

impl<'a, C: Number> PagesMut<'a, C> {
    /// See [`Pages::new`].
    pub fn new(
        keys: &'a mut impl MemoryMut<C>,
        values: &'a mut impl MemoryMut<C>,
        shape: [usize; 4],
    ) -> Self {
        let layout = Layout::new(shape, Values::Apart);
        PagesMut { keys, values: Some(values), layout, scales: Scales::ONE }
    }

    /// See [`Pages::interleaved`].
    pub fn interleaved(both: &'a mut impl MemoryMut<C>, shape: [usize; 4]) -> Self {
        let layout = Layout::new(shape, Values::Interleaved);
        PagesMut { keys: both, values: None, layout, scales: Scales::ONE }
    }

    /// See [`Pages::latent`].
    pub fn latent(rows: &'a mut impl MemoryMut<C>, shape: [usize; 4], head_dim_v: usize) -> Self {
        let layout = Layout::new(shape, Values::Latent(head_dim_v));
        PagesMut { keys: rows, values: None, layout, scales: Scales::ONE }
    }

    /// Sets the scales of an int8 cache, which the kernel writes: contiguous, `[pages, page, heads]` of keys
    /// and of values.
    ///
    /// ```compile_fail,E0308
    /// # use cudarc::driver::CudaSlice;
    /// # use ferroflash::cudarc::PagesMut;
    /// fn shared(keys: &mut CudaSlice<i8>, values: &mut CudaSlice<i8>, scales: &CudaSlice<f32>) {
    ///     PagesMut::new(keys, values, [2, 16, 2, 64]).token_scales(scales, scales);
    /// }
    /// ```
    pub fn token_scales(
        self,
        keys: &'a mut impl MemoryMut<f32>,
        values: &'a mut impl MemoryMut<f32>,
    ) -> Self {
        PagesMut { scales: Scales::Tokens([keys, values]), ..self }
    }

    layouts!();

    pub(super) fn on<'t, const MOST: usize>(
        self,
        guards: &mut StreamGuards<'t, MOST>,
    ) -> Result<KvPages, Error>
    where
        'a: 't,
    {
        let keys = guards.write("cache.keys", self.keys)?;
        let values = self.values.map(|values| guards.write("cache.values", values)).transpose()?;
        let write = |guards: &mut StreamGuards<'t, MOST>, name, data: &'a mut dyn MemoryMut<f32>| {
            guards.write(name, data)
        };
        let [k, v] = self.scales.on(guards, self.layout.shape[2], write)?;
        Ok(self.layout.views::<C>(keys, values).scales(k, v))
    }
}

/// The pages of each sequence.
#[derive(Clone, Copy)]
enum Paged<'a> {
    Dense { rows: Option<Integers<'a>> },
    Table { entries: Integers<'a>, columns: usize, stride: usize },
}

/// The KV cache of some sequences. Kernels read lengths and page indices when they run. Invalid integers give
/// wrong results, never an access outside the slices.
#[derive(Clone, Copy)]
#[must_use]
pub struct Cache<'a, C> {
    pages: Pages<'a, C>,
    paged: Paged<'a>,
    lengths: Integers<'a>,
    max_k: Option<usize>,
    total_k: Option<usize>,
}

impl<'a, C: Number> Cache<'a, C> {
    /// Returns a dense cache: one page per sequence, `[batch, capacity, heads, head_dim]`, and `batch`
    /// lengths with the keys of this step (`cache_seqlens`).
    pub fn dense(pages: Pages<'a, C>, lengths: impl Into<Integers<'a>>) -> Self {
        let (paged, lengths) = (Paged::Dense { rows: None }, lengths.into());
        Cache { pages, paged, lengths, max_k: None, total_k: None }
    }

    /// Sets the page of each sequence in a dense cache (`cache_batch_idx`). The default is page `b` for
    /// sequence `b`.
    pub fn rows(self, rows: impl Into<Integers<'a>>) -> Self {
        Cache { paged: Paged::Dense { rows: Some(rows.into()) }, ..self }
    }

    /// Returns a paged cache: `table` has `columns` page indices per sequence, contiguous (`block_table`).
    pub fn paged(
        pages: Pages<'a, C>,
        table: impl Into<Integers<'a>>,
        columns: usize,
        lengths: impl Into<Integers<'a>>,
    ) -> Self {
        let paged = Paged::Table { entries: table.into(), columns, stride: columns };
        Cache { pages, paged, lengths: lengths.into(), max_k: None, total_k: None }
    }

    /// Sets the distance between two rows of the table, in integers. The default is `columns`.
    pub fn table_stride(mut self, numbers: usize) -> Self {
        if let Paged::Table { stride, .. } = &mut self.paged {
            *stride = numbers;
        }
        self
    }

    /// Returns the number of columns of values.
    pub(super) fn columns(&self) -> usize {
        let Layout { shape, of_values, values, .. } = self.pages.layout;
        match values {
            Values::Latent(columns) => columns,
            Values::Apart | Values::Interleaved => of_values.map_or(shape[3], |(columns, _)| columns),
        }
    }

    /// See [`KvCache::max_k`].
    pub fn max_k(self, keys: usize) -> Self {
        Cache { max_k: Some(keys), ..self }
    }

    /// See [`KvCache::total_k`].
    pub fn total_k(self, keys: usize) -> Self {
        Cache { total_k: Some(keys), ..self }
    }

    pub(super) fn on<const MOST: usize>(
        &self,
        guards: &mut StreamGuards<'a, MOST>,
    ) -> Result<KvCache, Error> {
        let (pages, lengths) = (self.pages.on(guards)?, guards.integers("cache.lengths", self.lengths)?);
        let mut cache = match self.paged {
            Paged::Dense { rows: None } => KvCache::dense(pages, lengths),
            Paged::Dense { rows: Some(rows) } => {
                KvCache::dense(pages, lengths).rows(guards.integers("cache.rows", rows)?)
            }
            Paged::Table { entries, columns, stride } => {
                let entries = guards.integers("cache.table", entries)?;
                KvCache::paged(pages, entries, columns, lengths).table_stride(stride)
            }
        };
        cache.max_k = self.max_k.unwrap_or(cache.max_k);
        cache.total_k = self.total_k;
        Ok(cache)
    }
}
