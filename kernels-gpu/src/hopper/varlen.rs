//! Varlen tensors on Hopper. Each producer thread finds the sequence of a work tile from the device's
//! integers, while the consumers compute the previous tile. The first producer thread broadcasts the tile
//! info together with the tile's queries. The kernel then treats the work tile like any other, because the
//! tensor maps end where the sequence ends.
use crate::entries::RunAs;
use crate::hopper::scheduler::{MapTile, Scheduler};
use crate::hopper::{Body, HopperKernel};
use crate::lengths::{self, Span};
use crate::work::SequenceTile;
use core::marker::PhantomData;
use cuda_std::math::opaque;
use spec::{
    AttnKernel, HasVariant, HopperParams, Kernel, Lse, MaskMarker, OwnTiles, RaggedMap, Sm90a, VariantParams,
    Varlen, VarlenParams, WorkTile,
};
use tile::global::GlobalVec;
use tile::pipeline::{Consumer, Producer};
use tile::tma::{BroadcastTma, RaggedRow, TileInfo, TmaTile};
use tile::{Block, Smem, Warp};

impl SequenceTile {
    /// The tile of a head that starts at query `before` of a sequence. `aligned` is the position of the
    /// sequence's first query. A tile behind the sequence's queries has no query and no key.
    #[inline(always)]
    pub fn new(tile: WorkTile, of: (u32, Span, u32), keys: Span, aligned: i32) -> Self {
        let (sequence, queries, before) = of;
        let [queries, keys] = match before < queries.rows() {
            true => [queries.skip(before), keys],
            false => [Span::upto(0); 2],
        };
        let tile = WorkTile { m_block: 0, ..tile };
        SequenceTile { tile, sequence, queries, keys, shift: aligned.wrapping_add(before as i32), before }
    }

    /// An equal tile that ptxas may keep in uniform registers.
    #[inline(always)]
    pub fn uniform(self, warp: Warp) -> Self {
        let SequenceTile { tile, sequence, queries, keys, shift, before } = self;
        let [sequence, shift, before] = [sequence, shift as u32, before].map(|x| warp.uniform(x));
        let [queries, keys] = [queries, keys].map(|span| span.uniform(warp));
        SequenceTile { tile, sequence, queries, keys, shift: shift as i32, before }
    }

    /// The tile info that describes this tile. If masks or scores have parameters (`with_variant`), the info
    /// includes the tile's place in the sequence, which they may need.
    #[inline(always)]
    pub fn info(&self, with_variant: bool) -> TileInfo {
        let ([first, queries], [_, keys]) = (self.queries.words(), self.keys.words());
        let [sequence, before] = if with_variant { [self.sequence, self.before] } else { [0; 2] };
        [first, queries, keys, self.tile.head, self.shift as u32, sequence, before, 0]
    }

    /// The tile that a tile info describes. This tile does not have the place of its keys, because consumers
    /// copy no keys.
    #[inline(always)]
    pub fn of_info(
        [first, queries, keys, head, shift, sequence, before, _]: TileInfo,
        with_variant: bool,
    ) -> Self {
        let queries = Span::of_words([first, queries]);
        let tile = WorkTile { m_block: 0, batch: 0, head, kv_head: 0 };
        let [sequence, before] = if with_variant { [sequence, before] } else { [0; 2] };
        SequenceTile { tile, sequence, queries, keys: Span::upto(keys), shift: shift as i32, before }
    }

    /// The coordinates of query `row` of the tile.
    #[inline(always)]
    pub fn query(&self, row: u32) -> RaggedRow {
        RaggedRow::new(row, self.tile.head, self.queries.first(), self.queries.rows())
    }

    /// The LSE of the tile's queries. A head has `rows` queries, over all sequences; `batch` returns the
    /// batch of the tile's first query.
    #[inline(always)]
    pub fn lse(&self, lse: &Lse, rows: u32, batch: impl FnOnce(u32) -> u32) -> GlobalVec {
        let first = self.queries.first();
        let of_all = GlobalVec::new(lse, batch(first), self.tile.head, rows);
        if lse.base == 0 {
            return of_all;
        }
        // `opaque` makes LLVM keep this branch. Without it, LLVM joins the end of a tile with the start of
        // the next. ptxas then assumes that lanes leave the loop one by one, and serialises the `wgmma`
        // products.
        of_all.part(opaque(first), self.queries.rows())
    }
}

impl MapTile for SequenceTile {
    type Queries = RaggedMap;
    type Keys = RaggedMap;
    type Params = VarlenParams<HopperParams<RaggedMap>>;

    #[inline(always)]
    fn head(&self) -> u32 {
        self.tile.head
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        SequenceTile { tile: self.tile.with_head(head), ..self }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.queries.rows() == 0
    }

    #[inline(always)]
    fn queries(&self, row: u32) -> RaggedRow {
        self.query(row)
    }

    #[inline(always)]
    fn keys(&self, _: &VarlenParams<HopperParams<RaggedMap>>, row: u32) -> RaggedRow {
        RaggedRow::new(row, self.tile.kv_head, self.keys.first(), self.keys.rows())
    }

    #[inline(always)]
    fn lse(&self, p: &VarlenParams<HopperParams<RaggedMap>>) -> GlobalVec {
        self.lse(&p.forward.lse, p.forward.q_len, |_| 0)
    }
}

/// The tile info behind the last work tile of a block. No tile has so many queries.
const END: TileInfo = [u32::MAX; 8];

/// A work tile that the producer finds and broadcasts.
pub trait Found: MapTile<Queries = RaggedMap> {
    /// Whether the tiles are those of a mixed batch that exist, the longest first.
    #[inline(always)]
    fn is_mixed(_: &Self::Params) -> bool {
        false
    }
    /// Finds the tile of `tile_m` queries that `tile` names.
    fn find(p: &Self::Params, tile: WorkTile, tile_m: u32) -> Self;
    /// See [`SequenceTile::info`].
    fn info(&self, with_variant: bool) -> TileInfo;
    /// See [`SequenceTile::of_info`].
    fn of_info(info: TileInfo, with_variant: bool) -> Self;
}

impl Found for SequenceTile {
    #[inline(always)]
    fn find(p: &VarlenParams<HopperParams<RaggedMap>>, tile: WorkTile, tile_m: u32) -> Self {
        let VarlenParams { forward, cu_seqlens_q, .. } = p;
        let begin = |sequence, start| p.sequences.begin(sequence, start, tile_m);
        let sequence = p.sequences.find_by_halves(tile.m_block, |sequence| {
            begin(sequence, lengths::start(cu_seqlens_q, sequence)) <= tile.m_block
        });
        let queries = Span::load(cu_seqlens_q, sequence, forward.q_len);
        let before = tile.m_block.wrapping_sub(begin(sequence, queries.first())).wrapping_mul(tile_m);
        let keys = Span::load(&p.cu_seqlens_k, sequence, forward.k_len).used(&p.seqused_k, sequence);
        let aligned = (keys.rows() as i32 - queries.rows() as i32) * p.bottom_right as i32;
        Self::new(tile, (sequence, queries, before), keys, aligned)
    }

    #[inline(always)]
    fn info(&self, with_variant: bool) -> TileInfo {
        self.info(with_variant)
    }

    #[inline(always)]
    fn of_info(info: TileInfo, with_variant: bool) -> Self {
        Self::of_info(info, with_variant)
    }
}

/// The tile scheduler of kernel `K` with varlen queries. Some of the order's tiles have no sequence. The
/// producer skips them, and tells the consumers when no tile follows. (H200: the consumers took 2.9 us for a
/// tile without a query.)
pub struct VarlenScheduler<'p, T: Found, K> {
    p: &'p T::Params,
    tiles: OwnTiles,
    kernel: PhantomData<K>,
}

impl<'p, T: Found, K: AttnKernel> VarlenScheduler<'p, T, K> {
    /// Whether the kernel's masks or scores have parameters.
    const TOLD: bool = spec::has_params::<K>();
    /// Whether mixed batches may have the kernel: decode kernels, which take the other sequences, have as
    /// many columns of V as of K.
    const MIXES: bool = K::INFO.head_dim == K::INFO.head_dim_v;

    /// The scheduler of block `index` of `count`.
    #[inline(always)]
    pub fn of(p: &'p T::Params, index: u32, count: u32) -> Self {
        VarlenScheduler { p, tiles: p.as_ref().rounds.of(index, count), kernel: PhantomData }
    }
}

impl<T: Found, K: AttnKernel> Scheduler for VarlenScheduler<'_, T, K> {
    type Tile = T;
    type By = BroadcastTma<RaggedMap>;

    #[inline(always)]
    fn find(&mut self) -> Option<T> {
        let in_turns = Self::MIXES && T::is_mixed(self.p);
        self.tiles.next(in_turns).map(|tile| T::find(self.p, tile, K::INFO.tile_m))
    }

    #[inline(always)]
    fn load<B: TmaTile, const S: usize>(
        q: &mut Producer<B, S, BroadcastTma<RaggedMap>>,
        tile: &T,
        from: &B::Tensor<RaggedMap>,
        at: RaggedRow,
    ) {
        q.load(tile.info(Self::TOLD), from, at)
    }

    #[inline(always)]
    fn end<B: TmaTile, const S: usize>(
        q: &mut Producer<B, S, BroadcastTma<RaggedMap>>,
        from: &B::Tensor<RaggedMap>,
    ) {
        q.load(END, from, RaggedRow::new(0, 0, 0, 0))
    }

    #[inline(always)]
    fn receive<B: TmaTile, const S: usize>(
        &mut self,
        q: &mut Consumer<B, S, BroadcastTma<RaggedMap>>,
    ) -> Option<T> {
        let info = q.info();
        (info[1] != END[1]).then(|| T::of_info(info, Self::TOLD))
    }
}

impl<K: Body> HopperKernel for Varlen<K> {
    type Forward = HopperParams<RaggedMap>;
    #[inline(always)]
    fn enter<C: Kernel<Params: AsRef<HopperParams<RaggedMap>> + HasVariant<VariantParams<K>>>>(
        p: &VarlenParams<HopperParams<RaggedMap>>,
        variant: &VariantParams<K>,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let source = |index, count| VarlenScheduler::<SequenceTile, K>::of(p, index, count);
        K::body(p, variant, source, block, smem)
    }
}

impl<K: Body<Mask: MaskMarker<Params = ()>>> RunAs<Varlen<K>, Sm90a> for K {
    #[inline(always)]
    fn run_as(p: VarlenParams<HopperParams<RaggedMap>>, block: Block<Varlen<K>>, smem: Smem<Varlen<K>>) {
        Varlen::<K>::enter(&p, &(), block, smem)
    }
}
