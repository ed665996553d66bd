//! The code that Hopper's schedules share: the producer's copies, the mask of a work tile, and the loop over
//! its key blocks.
use crate::capped::Rescaled;
use crate::hopper::scheduler::{ForwardOf, KeysOf, MapTile, ParamsOf, Scheduler};
use crate::hopper::softmax::BoundedSoftmax;
use crate::rows::{Rows, Sequence};
use crate::variant::blocks::{At, BlockRange, Seen};
use crate::variant::kept::Kept;
use crate::variant::staged::Staged;
use crate::variant::tile_mask::TileMask;
use crate::variant::{MaskFn, Scores};
use spec::{HopperParams, Kernel, MaskMarker};
use tile::global::GlobalVec;
use tile::group::{Capability, Warpgroup};
use tile::mma::{AFrag, Acc, Mma, RowVec, WarpgroupCore};
use tile::pipeline::{Consumer, MbarrierPipeline, Producer, Specialized, StageConverter, StageGuard};
use tile::shared::{SharedTile, SharedTiles};
use tile::tma::{Fills, MapKind, TileTransport, TmaTensor, TmaTransport};
use tile::wgmma::{Ab, Abt};
use tile::{Block, Warp};

/// A stage of Q, with a tile of 64 rows per warpgroup.
pub type QTiles<E, const W: usize, const D: usize> = SharedTiles<E, 4, D, W>;

/// The transport that fills blocks of `E` from keys and values of type `F`, for scheduler `S`.
type KeysBy<S, E, F> = <F as Fills<E>>::By<KeysOf<S>>;

/// A pipeline of key blocks, or of value blocks, filled from elements `F`.
pub type Blocks<S, E, F, const N: usize, const D: usize, const STAGES: usize> =
    MbarrierPipeline<SharedTile<E, N, D>, STAGES, KeysBy<S, E, F>>;

/// The problem's tensors, with keys and values of type `F`.
pub struct Tensors<E, F: Fills<E>, Q, K: MapKind, const N: usize, const D: usize, const DV: usize> {
    /// Queries.
    pub q: TmaTensor<E, 4, D, Q>,
    /// Keys.
    pub k: <F::By<K> as TileTransport<E>>::Tensor<N, D>,
    /// Values.
    pub v: <F::By<K> as TileTransport<E>>::Tensor<N, DV>,
    /// Output.
    pub o: TmaTensor<E, 4, DV, Q>,
}

/// The tensors of scheduler `S`'s work tiles.
pub type TensorsOf<S, E, F, const N: usize, const D: usize, const DV: usize> = Tensors<
    E,
    F,
    <<S as Scheduler>::Tile as MapTile>::Queries,
    <<S as Scheduler>::Tile as MapTile>::Keys,
    N,
    D,
    DV,
>;

impl<E: Mma, F: Fills<E>, Q: MapKind, K: MapKind, const N: usize, const D: usize, const DV: usize>
    Tensors<E, F, Q, K, N, D, DV>
{
    /// The tensors behind the launch's tensor maps.
    #[inline(always)]
    pub fn of<C: Kernel<Params: AsRef<HopperParams<Q::Data, K::Data>>>>(block: &Block<C>) -> Self {
        Tensors {
            q: block.tensor(|p| &p.as_ref().q),
            k: F::By::tensor(block, |p| &p.as_ref().k),
            v: F::By::tensor(block, |p| &p.as_ref().v),
            o: block.tensor(|p| &p.as_ref().o),
        }
    }
}

/// The pipeline of the numbers that scores read beside keys.
pub type StagedBy<Mask, const W: usize, const N: usize> =
    <<Mask as MaskFn>::Staged as Staged<<Mask as MaskMarker>::Params>>::Pipeline<W, N>;
/// Its consumer side.
type StagedConsumer<Mask, const W: usize, const N: usize> = <StagedBy<Mask, W, N> as Specialized>::Consumer;
/// The tensor of these numbers.
pub type StagedTensor<Mask, const N: usize> =
    <<Mask as MaskFn>::Staged as Staged<<Mask as MaskMarker>::Params>>::Tensor<N>;

/// The coordinates of a query row in work tiles of type `P`.
type QueryAt<P> = <<P as MapTile>::Queries as MapKind>::At;

/// A warp's results for the key blocks so far. O is not normalised, and still lacks the last block's P
/// V.
pub struct Attended<E, K, const N: usize, const DV: usize, const ORDERED: bool> {
    /// The softmax over all blocks so far.
    pub softmax: BoundedSoftmax<ORDERED>,
    /// The kernels of the mask keep this state of the scores: [`MaskFn::Kept`].
    pub kept: K,
    /// The accumulators of O.
    pub acc_o: Acc<1, DV>,
    /// P of the latest block.
    pub probs: AFrag<E, 1, N>,
}

/// The parameters for the products of a tile's keys, under mask `Mask`.
#[inline(always)]
fn rescaled<'p, P: MapTile, Mask: MaskFn>(p: &'p ForwardOf<P>, tile: &P) -> Rescaled<'p, ForwardOf<P>> {
    Rescaled::new(p, P::SCALED.then(|| tile.factor()), !Mask::Scores::IS_NONE)
}

/// A work tile under a mask, with the rows of `W` warpgroups, and key blocks of `N` base tiles.
pub struct View<'p, P: MapTile, Mask: MaskFn, const W: usize, const N: usize> {
    p: &'p P::Params,
    variant: &'p Mask::Params,
    /// The work tile.
    pub tile: P,
    rows: Rows,
    /// The key blocks that at least one row sees. If no row sees a key, the range has one block, which the
    /// mask removes completely. The epilogue is therefore the same for all work tiles.
    pub range: BlockRange,
    of: Sequence,
    mask: Mask::Tile,
}

impl<'p, P: MapTile, Mask: MaskFn, const W: usize, const N: usize> View<'p, P, Mask, W, N> {
    const TILE_N: u32 = N as u32 * 16;

    /// The work tile `tile` under the kernel's mask.
    #[inline(always)]
    pub fn of(p: &'p P::Params, variant: &'p Mask::Params, tile: P, by: &impl Capability) -> Self {
        // On varlen tensors, ptxas serialises products behind the loads of a list. On KV caches, the producer
        // spills.
        const {
            assert!(
                !Mask::LISTED || !P::MAY_LACK_KEYS,
                "Hopper's varlen, paged and split-KV kernels take ranges of blocks: `BlockSparse` needs `Fwd`"
            )
        }
        let rows = tile.rows(p.as_ref(), W as u32 * 64);
        let of = Sequence::of(&rescaled::<P, Mask>(p.as_ref(), &tile), &rows, tile.before(), by);
        let mask = Mask::tile(variant, &of, [W as u32 * 64, Self::TILE_N]);
        let seen = mask.range(&rows, Self::TILE_N);
        let mut range = tile.share(seen);
        if P::SPLIT && range.start >= range.end {
            // If there are more splits than key blocks, some splits get no key block. Such a split takes a
            // block behind all keys that any row sees.
            range.start = seen.end;
        }
        if P::may_see_nothing::<Mask>() {
            range.end = range.end.max(range.start + 1);
        }
        View { p, variant, tile, rows, range, of, mask }
    }

    /// The coordinates of the tile's first query.
    #[inline(always)]
    pub fn queries(&self) -> QueryAt<P> {
        self.tile.queries(self.rows.first)
    }

    /// The coordinates of block `n`'s first key.
    #[inline(always)]
    pub fn keys(&self, n: u32) -> <P::Keys as MapKind>::At {
        let block = if Mask::LISTED { self.mask.block(n) } else { n };
        self.tile.keys(self.p, block * Self::TILE_N)
    }

    /// Factor that converts scores to exponents of 2.
    #[inline(always)]
    pub fn scale_log2(&self) -> f32 {
        Mask::Scores::scale_log2(&rescaled::<P, Mask>(self.p.as_ref(), &self.tile))
    }

    /// Whether at least one row does not see all keys of block `n`.
    #[inline(always)]
    pub fn is_edge(&self, n: u32) -> bool {
        n >= self.range.interior.1 || Mask::LEFT && n < self.range.interior.0
    }

    /// Turns the products of block `n` into scores, and masks them if the block is an `edge`. `first_row` is
    /// the warp's first row in the tile.
    #[inline(always)]
    pub fn see(
        &self,
        s: &mut Acc<1, N>,
        staged: &mut StagedConsumer<Mask, W, N>,
        n: u32,
        edge: bool,
        (first_row, warp): (u32, Warp),
    ) {
        let (p, rows) = (&rescaled::<P, Mask>(self.p.as_ref(), &self.tile), &self.rows);
        let mut at = At { rows, row0: rows.first + first_row, key0: n * Self::TILE_N, warp };
        if Mask::LISTED {
            at.key0 = self.mask.block(n) * Self::TILE_N;
        }
        Mask::scores(p, self.variant, &self.of).change(p, s, at);
        Mask::Staged::add::<W, N>(staged, s, &self.of);
        if edge {
            Seen::<_, 1>::of(self.mask.keys(), at).mask(s, at);
        }
    }

    /// Like `View::see`, for the last key block. The loop takes this block first.
    #[inline(always)]
    pub fn see_first(&self, s: &mut Acc<1, N>, staged: &mut StagedConsumer<Mask, W, N>, group: (u32, Warp)) {
        self.see(s, staged, self.range.end - 1, true, group)
    }

    /// [`View::see_first`], and the state behind this block: softmax, P, and what the mask's kernels keep.
    #[inline(always)]
    pub fn first<E: Mma, const ORDERED: bool>(
        &self,
        s: &mut Acc<1, N>,
        staged: &mut StagedConsumer<Mask, W, N>,
        group: (u32, Warp),
    ) -> (BoundedSoftmax<ORDERED>, AFrag<E, 1, N>, Mask::Kept) {
        self.see_first(s, staged, group);
        let mut kept = Mask::Kept::none();
        kept.see(s);
        let (softmax, probs) = BoundedSoftmax::first(s, self.scale_log2(), group.1);
        (softmax, probs, kept)
    }

    /// Processes all key blocks after the first: S(n) = Q K(n)^T runs beside O += P(n + 1) V(n + 1). The
    /// caller must issue the last block's O += P V. Products compute the first `OF` base tiles of columns of
    /// Q and K, and the first `OV` of V.
    #[inline(always)]
    pub fn attend<
        E: WarpgroupCore,
        const D: usize,
        const DV: usize,
        const OF: usize,
        const OV: usize,
        const STAGES: usize,
        const ORDERED: bool,
        By: TmaTransport,
    >(
        &self,
        so_far: &mut Attended<E, Mask::Kept, N, OV, ORDERED>,
        q_tile: &StageGuard<'_, QTiles<E, W, D>>,
        k: &mut Consumer<SharedTile<E, N, D>, STAGES, By>,
        v: &mut Consumer<SharedTile<E, N, DV>, STAGES, By>,
        staged: &mut StagedConsumer<Mask, W, N>,
        group: &mut Warpgroup<W>,
    ) {
        let (warp, first_row) = (group.warp(), group.first_row());
        let mut n = self.range.end - 1;
        while n > self.range.start {
            n -= 1;
            so_far.probs = group.overlap(
                Abt(&mut Acc::unset(), q_tile, k).of_first::<OF>(),
                Ab(&mut so_far.acc_o, &so_far.probs, v),
                &mut (&mut so_far.softmax, &mut so_far.kept),
                |(softmax, kept), s| {
                    let edge = !Mask::SEES_ALL && self.is_edge(n);
                    self.see(s, staged, n, edge, (first_row, warp));
                    softmax.exp(s, *kept, warp)
                },
                |(softmax, _), s, acc_o, found, grown| match grown {
                    true => softmax.rebase(s, acc_o, warp),
                    false => softmax.keep(found),
                },
            );
        }
    }

    /// Stores the sums of `lse` and of what it `lacks`.
    #[inline(always)]
    pub fn store_lse(&self, lse: &RowVec<1>, lacks: &GlobalVec, group: &Warpgroup<W>) {
        let (first, warp) = (self.rows.first + group.first_row(), group.warp());
        let lse = lse.zip(lacks.load_together(first, warp), |lse, lacks| lse + lacks);
        self.tile.lse(self.p).store_together(&lse, first, warp);
    }

    /// Normalises O, passes O and the coordinates of its first row to `send`, and stores the LSE and what the
    /// mask's kernels keep.
    #[inline(always)]
    pub fn store<E, const DV: usize, const ORDERED: bool>(
        &self,
        attended: Attended<E, Mask::Kept, N, DV, ORDERED>,
        group: &mut Warpgroup<W>,
        send: impl FnOnce(&Acc<1, DV>, QueryAt<P>, &mut Warpgroup<W>),
    ) {
        let (Attended { softmax, kept, mut acc_o, .. }, warp) = (attended, group.warp());
        let sink = || Mask::sink(self.variant, &self.of, self.tile.counts_sink());
        let (normalise, lse) = softmax.finish(Mask::SINK.then(sink), warp);
        acc_o.scale_or_clear_rows(&normalise);
        if P::SCALED {
            let of_values = self.tile.of_values();
            acc_o.map(|x| x * of_values);
        }
        send(&acc_o, self.queries(), group);
        let (to, row0) = (self.tile.lse(self.p), self.rows.first + group.first_row());
        to.store_together(&lse, row0, warp);
        kept.store(self.variant, self.scale_log2(), (to, &self.p.as_ref().lse), row0, warp);
    }
}

/// The producer: starts the copies of Q and key blocks of every work tile, in the order in which consumers
/// read them. If there are several stages for Q, the producer copies a value block after the next key block,
/// even if that key block belongs to the next tile. If there is one stage for Q, consumers release Q together
/// with the tile's last values, so a value block does not wait for the next key block.
#[inline(always)]
pub fn copy<
    S: Scheduler,
    E: Mma,
    F: Fills<E>,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const DV: usize,
    const PLACES: usize,
    const STAGES: usize,
>(
    (p, variant): (&ParamsOf<S>, &Mask::Params),
    mut source: S,
    tensors: &TensorsOf<S, E, F, N, D, DV>,
    mut q: Producer<QTiles<E, W, D>, PLACES, S::By>,
    mut k: Producer<SharedTile<E, N, D>, STAGES, KeysBy<S, E, F>>,
    mut v: Producer<SharedTile<E, N, DV>, STAGES, KeysBy<S, E, F>>,
    (mut staged, numbers): (<StagedBy<Mask, W, N> as Specialized>::Producer, &StagedTensor<Mask, N>),
) {
    const { assert!(PLACES == 1 || !S::Tile::IS_SHARE, "a tile's values follow with the next tile") }
    let mut behind = None;
    while let Some(mut tile) = source.find() {
        if let Some(warp) = F::By::whole_warp(&k) {
            tile = tile.in_warp(p, warp);
        }
        if tile.is_empty() {
            continue;
        }
        let view = View::<S::Tile, Mask, W, N>::of(p, variant, tile, &k);
        S::load(&mut q, &tile, &tensors.q, view.queries());
        for n in (view.range.start..view.range.end).rev() {
            let block = F::By::find(&k, view.keys(n));
            F::By::load(&mut k, &tensors.k, 0, block);
            let values = if PLACES == 1 { Some(block) } else { behind.replace(block) };
            if let Some(values) = values {
                F::By::load(&mut v, &tensors.v, view.tile.first_column(), values);
            }
            let number = if Mask::LISTED { view.mask.block(n) } else { n };
            let key = number * N as u32 * 16;
            Mask::Staged::copy::<W, N>(&mut staged, numbers, variant, &view.of, key);
        }
    }
    S::end(&mut q, &tensors.q);
    if let Some(values) = behind {
        F::By::load(&mut v, &tensors.v, 0, values);
    }
    F::By::finish(k);
}

/// A converter warp: converts key blocks and value blocks in the order in which consumers read them.
#[inline(always)]
pub fn convert<
    S: Scheduler,
    E: Mma,
    F: Fills<E>,
    const N: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
>(
    mut k: StageConverter<SharedTile<E, N, D>, STAGES, KeysBy<S, E, F>>,
    mut v: StageConverter<SharedTile<E, N, DV>, STAGES, KeysBy<S, E, F>>,
) {
    let mut more = F::By::convert(&mut k);
    while more {
        more = F::By::convert(&mut k);
        F::By::convert(&mut v);
    }
}
