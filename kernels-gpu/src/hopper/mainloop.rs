//! What Hopper's kernels have in common: what a block copies, what a tile sees, and the loop over its key
//! blocks.
use crate::blocks::{At, BlockRange, Seen};
use crate::hopper::scheduler::{KeysOf, MapTile, ParamsOf, Scheduler};
use crate::hopper::softmax::BoundedSoftmax;
use crate::rows::{Rows, Sequence};
use crate::variant::{MaskFn, Scores};
use core::marker::PhantomData;
use spec::{HopperParams, Kernel, MaskKind};
use tile::group::Warpgroup;
use tile::mma::{AFrag, Acc, Mma, WarpgroupCore};
use tile::pipeline::{Consumer, MbarrierPipeline, Producer, StageGuard};
use tile::shared::{SharedTile, SharedTiles};
use tile::tma::{MapKind, Tma, TmaTensor};
use tile::wgmma::{Ab, Abt};
use tile::{Block, Warp};

/// Places for Q: a tile of 64 rows of each warpgroup.
pub type QTiles<E, const W: usize, const D: usize> = SharedTiles<E, 4, D, W>;

/// A ring for blocks of keys, or of values.
pub type Blocks<S, E, const N: usize, const D: usize, const STAGES: usize> =
    MbarrierPipeline<SharedTile<E, N, D>, STAGES, Tma<KeysOf<S>>>;

/// The problem's tensors.
pub struct Tensors<E, Q, K, const N: usize, const D: usize> {
    /// Queries.
    pub q: TmaTensor<E, 4, D, Q>,
    /// Keys.
    pub k: TmaTensor<E, N, D, K>,
    /// Values.
    pub v: TmaTensor<E, N, D, K>,
    /// Output.
    pub o: TmaTensor<E, 4, D, Q>,
}

/// Those of a source's work tiles.
pub type TensorsOf<S, E, const N: usize, const D: usize> =
    Tensors<E, <<S as Scheduler>::Tile as MapTile>::Queries, <<S as Scheduler>::Tile as MapTile>::Keys, N, D>;

impl<E: Mma, Q: MapKind, K: MapKind, const N: usize, const D: usize> Tensors<E, Q, K, N, D> {
    /// Those of the launch.
    #[inline(always)]
    pub fn of<C: Kernel<Params: AsRef<HopperParams<Q::Data, K::Data>>>>(block: &Block<C>) -> Self {
        Tensors {
            q: block.tensor(|p| &p.as_ref().q),
            k: block.tensor(|p| &p.as_ref().k),
            v: block.tensor(|p| &p.as_ref().v),
            o: block.tensor(|p| &p.as_ref().o),
        }
    }
}

/// Where a query of a work tile is.
type QueryAt<P> = <<P as MapTile>::Queries as MapKind>::At;

/// What a warp has made of the blocks that it has taken: O, not yet normalised, lacks the last one's P V.
pub struct Attended<E, const N: usize, const D: usize, const ORDERED: bool> {
    /// Of all of them.
    pub softmax: BoundedSoftmax<ORDERED>,
    /// O.
    pub acc_o: Acc<1, D>,
    /// P of the last.
    pub probs: AFrag<E, 1, N>,
}

/// One tile of queries under a mask, with blocks of `N` base tiles of keys, for `W` warpgroups.
pub struct View<'p, P: MapTile, Mask, const W: usize, const N: usize> {
    p: &'p P::Params,
    /// What of the problem it is.
    pub tile: P,
    rows: Rows,
    /// The key blocks that it takes: those that some row sees. Where none sees any, one, of which the mask
    /// leaves nothing, so that the tile ends like any other.
    pub range: BlockRange,
    mask: PhantomData<Mask>,
}

impl<'p, P: MapTile, Mask: MaskFn<Params = ()>, const W: usize, const N: usize> View<'p, P, Mask, W, N> {
    const TILE_N: u32 = N as u32 * 16;

    /// That of a work tile.
    #[inline(always)]
    pub fn of(p: &'p P::Params, tile: P) -> Self {
        const {
            let takes = matches!(Mask::KIND, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
            assert!(takes, "Hopper's kernels take the masks `Full`, `Causal` and `Local`")
        }
        let rows = tile.rows(p.as_ref(), W as u32 * 64);
        let of = Sequence::of(p.as_ref(), &rows, tile.before());
        let seen = BlockRange::of(Mask::keys(&(), &of), &rows, Self::TILE_N);
        let mut range = tile.share(seen);
        if P::SPLIT && range.start >= range.end {
            // Behind all keys that any row sees: where there are more splits than blocks.
            range.start = seen.end;
        }
        if P::may_see_nothing::<Mask>() {
            range.end = range.end.max(range.start + 1);
        }
        View { p, tile, rows, range, mask: PhantomData }
    }

    /// Where its queries begin.
    #[inline(always)]
    pub fn queries(&self) -> QueryAt<P> {
        self.tile.queries(self.rows.first)
    }

    /// Where the keys of block `n` begin.
    #[inline(always)]
    fn keys(&self, n: u32) -> <P::Keys as MapKind>::At {
        self.tile.keys(self.p, n * Self::TILE_N)
    }

    /// Whether some row does not see all of block `n`.
    #[inline(always)]
    fn is_edge(&self, n: u32) -> bool {
        n >= self.range.interior.1 || Mask::LEFT && n < self.range.interior.0
    }

    /// Makes of the products of block `n`, whether an `edge` or not, the scores that are seen. `first_row`
    /// is the warp's, in the tile.
    #[inline(always)]
    pub fn see(&self, s: &mut Acc<1, N>, n: u32, edge: bool, first_row: u32, warp: Warp) {
        let (p, rows) = (self.p.as_ref(), &self.rows);
        let at = At { rows, row0: rows.first + first_row, key0: n * Self::TILE_N, warp };
        let of = Sequence::of(p, rows, 0);
        Mask::scores(p, &(), &of).change(p, s, at);
        if edge {
            Seen::<_, 1>::of(Mask::keys(&(), &of), at).mask(s, at);
        }
    }

    /// The same of the last block, which is taken first.
    #[inline(always)]
    pub fn see_first(&self, s: &mut Acc<1, N>, first_row: u32, warp: Warp) {
        self.see(s, self.range.end - 1, true, first_row, warp)
    }

    /// The blocks behind the first: S(n) = Q K^T beside O += P(n + 1) V(n + 1). The last block's P is left.
    #[inline(always)]
    pub fn attend<E: WarpgroupCore, const D: usize, const STAGES: usize, const ORDERED: bool>(
        &self,
        so_far: &mut Attended<E, N, D, ORDERED>,
        q_tile: &StageGuard<'_, QTiles<E, W, D>>,
        k: &mut Consumer<SharedTile<E, N, D>, STAGES, Tma<P::Keys>>,
        v: &mut Consumer<SharedTile<E, N, D>, STAGES, Tma<P::Keys>>,
        group: &mut Warpgroup<W>,
    ) {
        let (warp, first_row) = (group.warp(), group.first_row());
        let mut n = self.range.end - 1;
        while n > self.range.start {
            n -= 1;
            so_far.probs = group.overlap(
                Abt(&mut Acc::unset(), q_tile, k),
                Ab(&mut so_far.acc_o, &so_far.probs, v),
                &mut so_far.softmax,
                |softmax, s| {
                    self.see(s, n, !Mask::SEES_ALL && self.is_edge(n), first_row, warp);
                    softmax.exp(s, warp)
                },
                |softmax, s, acc_o, found, grown| match grown {
                    true => softmax.rebase(s, acc_o, warp),
                    false => softmax.keep(found),
                },
            );
        }
    }

    /// Normalises O, hands it to `send` with where it goes, and stores the LSE.
    #[inline(always)]
    pub fn store<E, const D: usize, const ORDERED: bool>(
        &self,
        attended: Attended<E, N, D, ORDERED>,
        group: &mut Warpgroup<W>,
        send: impl FnOnce(&Acc<1, D>, QueryAt<P>, &mut Warpgroup<W>),
    ) {
        let (Attended { softmax, mut acc_o, .. }, warp) = (attended, group.warp());
        let (normalise, lse) = softmax.finish(warp);
        acc_o.scale_or_clear_rows(&normalise);
        send(&acc_o, self.queries(), group);
        let to = self.tile.lse(self.p);
        to.store_together(&lse, self.rows.first + group.first_row(), warp);
    }
}

/// Starts the copies of every tile's Q and key blocks, in the order in which they are taken: values a block
/// later than keys, from tile to tile too. Where there is one place for Q, which is left with the last
/// values of the tile that has it, values do not wait for the next keys.
#[inline(always)]
pub fn copy<
    S: Scheduler,
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const PLACES: usize,
    const STAGES: usize,
>(
    p: &ParamsOf<S>,
    mut source: S,
    tensors: &TensorsOf<S, E, N, D>,
    mut q: Producer<QTiles<E, W, D>, PLACES, S::By>,
    mut k: Producer<SharedTile<E, N, D>, STAGES, Tma<KeysOf<S>>>,
    mut v: Producer<SharedTile<E, N, D>, STAGES, Tma<KeysOf<S>>>,
) {
    let mut behind = None;
    while let Some(tile) = source.find() {
        let view = View::<S::Tile, Mask, W, N>::of(p, tile);
        S::load(&mut q, &tile, &tensors.q, view.queries());
        for n in (view.range.start..view.range.end).rev() {
            let block = view.keys(n);
            k.load(&tensors.k, block);
            let values = if PLACES == 1 { Some(block) } else { behind.replace(block) };
            if let Some(values) = values {
                v.load(&tensors.v, values);
            }
        }
    }
    if let Some(values) = behind {
        v.load(&tensors.v, values);
    }
}
