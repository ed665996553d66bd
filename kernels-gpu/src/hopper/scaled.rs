//! Work tiles of e4m3 tensors, which have scales, and whose values lie as columns.
use crate::capped::{factor, times};
use crate::hopper::paged::CacheTile;
use crate::hopper::scheduler::MapTile;
use crate::hopper::varlen::Found;
use crate::rows::Rows;
use crate::work::{Problem, QueryTile, SequenceTile};
use attention_tile::{OutsidePages, head_of, load_per_head};
use spec::{Fp8Params, HopperPagedParams, RaggedMap, TensorMap, WorkTile};
use tile::Warp;
use tile::global::GlobalVec;
use tile::tma::{MapKind, RaggedRow, TileInfo};

/// A tile whose tensors have one scale per sequence and key head, and whose values lie as columns: each block
/// of keys has a row for each column of V.
pub trait Columns: MapTile {
    /// The kind of tensor map of V.
    type Values: MapKind<Data = <Self::Keys as MapKind>::Data>;
    /// Index of the sequence or batch, and of the key head.
    fn of_scales(&self) -> [u32; 2];
    /// The coordinates of the first row of block `n`. A block has `16 D` rows of `16 N` keys (`[N, D]`).
    fn values(&self, p: &Self::Params, size: [usize; 2], n: u32) -> <Self::Values as MapKind>::At;
    /// The summand that the LSE of the rows of [`MapTile::lse`] lacks.
    fn lacks(&self, p: &Fp8Params<Self::Params>) -> GlobalVec;
}

/// A tile of one sequence, whose tile info lacks the key head.
pub trait Sequenced: Columns + Found {
    /// The tile with this key head.
    fn with_kv_head(self, kv_head: u32) -> Self;
}

/// A work tile of dense tensors.
impl Columns for WorkTile {
    type Values = TensorMap;
    #[inline(always)]
    fn of_scales(&self) -> [u32; 2] {
        [self.batch, self.kv_head]
    }
    #[inline(always)]
    fn values(&self, _: &Self::Params, [_, d]: [usize; 2], n: u32) -> [u32; 3] {
        [n * d as u32 * 16, self.kv_head, self.batch]
    }
    #[inline(always)]
    fn lacks(&self, p: &Fp8Params) -> GlobalVec {
        GlobalVec::new(&p.lse_lacks, self.batch, self.head, p.forward.q_len)
    }
}

/// A tile of one sequence, whose blocks are those of [`spec::Sequences::by_rows`].
impl Columns for SequenceTile {
    type Values = RaggedMap;
    #[inline(always)]
    fn of_scales(&self) -> [u32; 2] {
        [self.sequence, self.tile.kv_head]
    }
    #[inline(always)]
    fn values(&self, _: &Self::Params, size: [usize; 2], n: u32) -> RaggedRow {
        let [keys, columns] = size.map(|tiles| tiles as u32 * 16);
        let (first, blocks) = (self.keys.first() / keys + self.sequence, self.keys.rows().div_ceil(keys));
        RaggedRow::new(n * columns, self.tile.kv_head, first * columns, blocks * columns)
    }
    #[inline(always)]
    fn lacks(&self, p: &Fp8Params<Self::Params>) -> GlobalVec {
        self.lse(&p.lse_lacks, p.forward.forward.q_len, |_| 0)
    }
}

impl Sequenced for SequenceTile {
    #[inline(always)]
    fn with_kv_head(mut self, kv_head: u32) -> Self {
        self.tile.kv_head = kv_head;
        self
    }
}

/// A tile of one sequence in a cache. Each sequence has the blocks of the longest one.
impl Columns for CacheTile<()> {
    type Values = OutsidePages;
    #[inline(always)]
    fn of_scales(&self) -> [u32; 2] {
        self.of.of_scales()
    }
    #[inline(always)]
    fn values(&self, p: &HopperPagedParams, size: [usize; 2], n: u32) -> RaggedRow {
        let [keys, columns] = size.map(|tiles| tiles as u32 * 16);
        let [most, blocks] = [p.forward.k_len, self.of.keys.rows()].map(|rows| rows.div_ceil(keys));
        let first = self.of.sequence * most;
        RaggedRow::new(n * columns, self.of.tile.kv_head, first * columns, blocks * columns)
    }
    #[inline(always)]
    fn lacks(&self, p: &Fp8Params<HopperPagedParams>) -> GlobalVec {
        self.of.lse(&p.lse_lacks, p.forward.forward.q_len, |_| 0)
    }
}

impl Sequenced for CacheTile<()> {
    #[inline(always)]
    fn with_kv_head(mut self, kv_head: u32) -> Self {
        self.of.tile.kv_head = kv_head;
        self
    }
}

/// Tile `T`, with the factor of its scores.
#[derive(Clone, Copy)]
pub struct ScaledTile<T> {
    of: T,
    factor: f32,
}

impl<T: Columns> ScaledTile<T> {
    /// The tile, before consumers load its factor.
    #[inline(always)]
    pub fn without_factor(of: T) -> Self {
        ScaledTile { of, factor: 1.0 }
    }

    /// Loads the factor of the products of the tile's queries and keys. `may_cap` says whether the kernel
    /// supports a softcap.
    #[inline(always)]
    pub fn with_factor(self, p: &Fp8Params<T::Params>, may_cap: bool, warp: Warp) -> Self {
        let (scales, forward) = (self.scale(p, 0, warp) * self.scale(p, 1, warp), p.forward.as_ref());
        let factor = if may_cap { factor(forward, scales) } else { times(forward.scale_log2, scales) };
        ScaledTile { factor, ..self }
    }

    /// The scale of the tile's values.
    #[inline(always)]
    pub fn of_values(&self, p: &Fp8Params<T::Params>, warp: Warp) -> f32 {
        self.scale(p, 2, warp)
    }

    /// The scale of the tile's queries (0), keys (1) or values (2).
    #[inline(always)]
    fn scale(&self, p: &Fp8Params<T::Params>, which: usize, warp: Warp) -> f32 {
        let [sequence, head] = self.of.of_scales();
        load_per_head(&p.scales[which], head_of(sequence, head, &warp))
    }

    /// See [`Columns::values`].
    #[inline(always)]
    pub fn values(&self, p: &Fp8Params<T::Params>, size: [usize; 2], n: u32) -> <T::Values as MapKind>::At {
        self.of.values(&p.forward, size, n)
    }

    /// See [`Columns::lacks`].
    #[inline(always)]
    pub fn lacks(&self, p: &Fp8Params<T::Params>) -> GlobalVec {
        self.of.lacks(p)
    }
}

impl<T: Columns> QueryTile for ScaledTile<T> {
    const MAY_LACK_KEYS: bool = T::MAY_LACK_KEYS;
    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        self.of.rows(p, tile_m)
    }
    #[inline(always)]
    fn before(&self) -> u32 {
        self.of.before()
    }
}

impl<T: Columns> MapTile for ScaledTile<T> {
    type Queries = T::Queries;
    type Keys = T::Keys;
    type Params = Fp8Params<T::Params>;
    const SCALED: bool = true;

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
    #[inline(always)]
    fn head(&self) -> u32 {
        self.of.head()
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        ScaledTile { of: self.of.with_head(head), ..self }
    }
    #[inline(always)]
    fn queries(&self, row: u32) -> <T::Queries as MapKind>::At {
        self.of.queries(row)
    }
    #[inline(always)]
    fn keys(&self, p: &Self::Params, row: u32) -> <T::Keys as MapKind>::At {
        self.of.keys(&p.forward, row)
    }
    #[inline(always)]
    fn lse(&self, p: &Self::Params) -> GlobalVec {
        self.of.lse(&p.forward)
    }
    #[inline(always)]
    fn factor(&self) -> f32 {
        self.factor
    }
}

impl<T: Sequenced> Found for ScaledTile<T> {
    #[inline(always)]
    fn find(p: &Self::Params, tile: WorkTile, tile_m: u32) -> Self {
        ScaledTile::without_factor(T::find(&p.forward, tile, tile_m))
    }

    /// The info of a tile with parameters. The consumers load scales, so they need the key head.
    #[inline(always)]
    fn info(&self, _: bool) -> TileInfo {
        let [a, b, c, d, e, f, g, _] = self.of.info(true);
        let [_, kv_head] = self.of.of_scales();
        [a, b, c, d, e, f, g, kv_head]
    }

    #[inline(always)]
    fn of_info(info: TileInfo, _: bool) -> Self {
        ScaledTile::without_factor(T::of_info(info, true).with_kv_head(info[7]))
    }
}
