//! Forward attention with products of e4m3, in the schedule of [`super::forward`]. docs/design/eight-bits.md
//! has the arithmetic.
//!
//! Products of eight bits read both operands along k, so values lie transposed in memory. Sums of the second
//! product are [`ByteSums`]: the tensor core adds at most 512 keys. Work tiles are [`ScaledTile`]s.
use crate::entries::{Run, RunAs};
use crate::hopper::mainloop::{QTiles, View};
use crate::hopper::paged::CacheTile;
use crate::hopper::scaled::{Columns, ScaledTile};
use crate::hopper::scheduler::{MapTile, Scheduler, StaticScheduler};
use crate::hopper::varlen::VarlenScheduler;
use crate::softmax::NONE;
use crate::variant::{MaskFn, Scores};
use crate::work::SequenceTile;
use core::f32::consts::LN_2;
use cuda_std::math::{ex2, fma, lg2, opaque, rcp};
use spec::{E4m3, Forward, Fp8Params, FwdHopperFp8, HopperPagedParams, Kernel, Paged, Sm90a, Varlen};
use tile::epilogue::StoreBuffer;
use tile::group::Warpgroup;
use tile::mma::{Acc, ByteFrag, Mma, RowVec};
use tile::pipeline::{MbarrierPipeline, Producer};
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};
use tile::wgmma::{AbtBytes, ByteSums, HasSums};
use tile::{Block, Smem, Warp};

/// The largest probability at a new reference is 2^4, an e4m3. Later probabilities may grow to 448.
const TOP: f32 = 4.0;
/// The largest sum of a row's probabilities, over half of a lane's columns, at which the reference stays: no
/// probability exceeds the largest e4m3.
const BOUND: f32 = 448.0;

/// The softmax of the rows of one warp: `P = 2^(S * scale_log2 + minus)`. As in [`super::softmax`], the
/// reference rises only if a row's sums do not prove that its probabilities fit.
struct Fp8Softmax {
    scale_log2: f32,
    minus: RowVec<1>,
    /// The sum of this lane's columns, of probabilities before rounding.
    row_sum: RowVec<1>,
}

/// P of a key block and its row sums, over even and odd halves of columns.
type Exponentials<const N: usize> = (ByteFrag<1, N>, [RowVec<1>; 2]);

impl Fp8Softmax {
    /// The state after the first key block, and P of this block.
    #[inline(always)]
    fn first<const N: usize>(s: &Acc<1, N>, scale_log2: f32, warp: Warp) -> (Self, ByteFrag<1, N>) {
        let mut softmax = Fp8Softmax { scale_log2, minus: RowVec::splat(-NONE), row_sum: RowVec::splat(0.0) };
        softmax.raise(s, warp);
        let found = softmax.exponentials(s);
        let p = softmax.keep(found);
        (softmax, p)
    }

    /// P at the old reference. The flag says whether a probability may exceed e4m3; NaN may.
    #[inline(always)]
    fn exp<const N: usize>(&self, s: &Acc<1, N>, warp: Warp) -> (bool, Exponentials<N>) {
        let (p, [even, odd]) = self.exponentials(s);
        let bounded = even.zip(odd, f32::max).reduce(f32::max) <= BOUND;
        (warp.any(!bounded), (p, [even, odd]))
    }

    /// Accepts P, and adds its row sums.
    #[inline(always)]
    fn keep<const N: usize>(&mut self, (p, [even, odd]): Exponentials<N>) -> ByteFrag<1, N> {
        self.row_sum = self.row_sum.zip(even.zip(odd, |a, b| a + b), |a, b| a + b);
        p
    }

    /// Computes P again at a new reference, and rescales O.
    #[inline(always)]
    fn rebase<const N: usize, const D: usize>(
        &mut self,
        s: &Acc<1, N>,
        sums: &mut impl ByteSums<D>,
        warp: Warp,
    ) -> ByteFrag<1, N> {
        let rescale = self.raise(s, warp);
        self.row_sum = self.row_sum.zip(rescale, |sum, factor| sum * factor);
        sums.scale_rows(&rescale);
        self.keep(self.exponentials(s))
    }

    /// Raises the reference to the scores. Returns the factors of the sums and of O.
    #[inline(always)]
    fn raise<const N: usize>(&mut self, s: &Acc<1, N>, warp: Warp) -> RowVec<1> {
        let seen = s.lane_max().across(warp, f32::max);
        let new = seen.zip(self.minus, |x, old| old.min(fma(-x, self.scale_log2, TOP)));
        let rescale = new.zip(self.minus, |new, old| ex2(new - old));
        self.minus = new;
        rescale
    }

    #[inline(always)]
    fn exponentials<const N: usize>(&self, s: &Acc<1, N>) -> Exponentials<N> {
        s.to_e4m3_in_order(|x, row| ex2(fma(x, self.scale_log2, self.minus[row])))
    }

    /// The factor that normalises O, negative for a row that saw no key, and the LSE.
    #[inline(always)]
    fn finish(&self, warp: Warp) -> (RowVec<1>, RowVec<1>) {
        let sum = self.row_sum.across(warp, |a, b| a + b);
        let lse = sum.zip(self.minus, |sum, minus| (lg2(sum) - minus) * LN_2);
        (sum.map(|x| if x == 0.0 { -1.0 } else { rcp(x) }), lse)
    }
}

/// The transports of the keys, and of the values, of tiles `T`.
type KeysBy<T> = Tma<<T as MapTile>::Keys>;
type ValuesBy<T> = Tma<<T as Columns>::Values>;

/// The sums of O.
type Sums<const D: usize> = <E4m3 as HasSums<D>>::Sums;
/// Shared memory of these sums.
type SumsOf<const D: usize, const W: usize> = <Sums<D> as ByteSums<D>>::Place<W>;

/// A block's shared memory: pipelines of Q, K and V, the store buffer of O, and the sums of O.
type Shared<S, T, E, const W: usize, const N: usize, const D: usize, const STAGES: usize> = (
    MbarrierPipeline<QTiles<E4m3, W, D>, 2, <S as Scheduler>::By>,
    (
        MbarrierPipeline<SharedTile<E4m3, N, D>, STAGES, KeysBy<T>>,
        (MbarrierPipeline<SharedTile<E4m3, D, N>, STAGES, ValuesBy<T>>, (StoreBuffer<E, D, W>, SumsOf<D, W>)),
    ),
);

/// The tensors of Q and K, and of V, transposed.
type Tensors<T, const N: usize, const D: usize> = (
    TmaTensor<E4m3, 4, D, <T as MapTile>::Queries>,
    TmaTensor<E4m3, N, D, <T as MapTile>::Keys>,
    TmaTensor<E4m3, D, N, <T as Columns>::Values>,
);

/// A work tile under the kernel's mask, with its scales.
type TileView<'p, T, Mask, const W: usize, const N: usize> = View<'p, ScaledTile<T>, Mask, W, N>;

/// The view of a tile whose scale of scores is loaded.
#[inline(always)]
fn view<'p, T: Columns, Mask: MaskFn<Params = ()>, const W: usize, const N: usize>(
    p: &'p Fp8Params<T::Params>,
    tile: ScaledTile<T>,
    warp: Warp,
) -> TileView<'p, T, Mask, W, N> {
    View::of(p, &(), tile.with_factor(p, !Mask::Scores::IS_NONE, warp), &warp)
}

/// Normalises O and stores it, and stores the LSE.
#[inline(always)]
fn store<T: Columns, Mask: MaskFn<Params = ()>, E: Mma, const W: usize, const N: usize, const D: usize>(
    (p, of): (&Fp8Params<T::Params>, &TileView<'_, T, Mask, W, N>),
    (softmax, mut acc_o): (Fp8Softmax, Acc<1, D>),
    (out, to): (&mut StoreBuffer<E, D, W>, &TmaTensor<E, 4, D, T::Queries>),
    group: &mut Warpgroup<W>,
) {
    let warp = group.warp();
    let (normalise, lse) = softmax.finish(warp);
    let of_values = of.tile.of_values(p, warp);
    acc_o.map(|x| x * of_values);
    acc_o.scale_or_clear_rows(&normalise);
    out.store(&acc_o, to, of.queries(), group);
    of.store_lse(&lse, &of.tile.lacks(p), group);
}

/// The producer: starts the copies of Q, K and V of every work tile. A block of values follows the next block
/// of keys, even if that key block belongs to the next tile.
#[inline(always)]
fn copy<
    S: Scheduler<Tile = ScaledTile<T>>,
    T: Columns,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
>(
    p: &Fp8Params<T::Params>,
    mut source: S,
    (of_queries, of_keys, of_values): &Tensors<T, N, D>,
    mut q: Producer<QTiles<E4m3, W, D>, 2, S::By>,
    mut k: Producer<SharedTile<E4m3, N, D>, STAGES, KeysBy<T>>,
    mut v: Producer<SharedTile<E4m3, D, N>, STAGES, ValuesBy<T>>,
) {
    let mut behind = None;
    while let Some(tile) = source.find() {
        if tile.is_empty() {
            continue;
        }
        let view = TileView::<T, Mask, W, N>::of(p, &(), tile, &k);
        S::load(&mut q, &tile, of_queries, view.queries());
        for n in (view.range.start..view.range.end).rev() {
            k.load(of_keys, view.keys(n));
            // Each block of keys has a tile of `16 D` rows of V^T.
            if let Some(values) = behind.replace(tile.values(p, [N, D], n)) {
                v.load(of_values, values);
            }
        }
    }
    S::end(&mut q, of_queries);
    if let Some(values) = behind {
        v.load(of_values, values);
    }
}

/// Processes the work tiles of a block.
#[inline(always)]
fn across_tiles<
    S: Scheduler<Tile = ScaledTile<T>>,
    T: Columns,
    C: Kernel<Params = Fp8Params<T::Params>>,
    E: Mma,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
>(
    p: &Fp8Params<T::Params>,
    source: impl Fn(u32, u32) -> S,
    block: Block<C>,
    smem: Smem<C>,
) where
    E4m3: HasSums<D>,
{
    const { assert!(!Mask::SINK && !Mask::LISTED, "the kernel adds no sink and takes ranges of blocks") }
    let tensors: Tensors<T, N, D> = (
        block.tensor(|p| &p.forward.as_ref().q),
        block.tensor(|p| &p.forward.as_ref().k),
        block.tensor(|p| &p.forward.as_ref().v),
    );
    let of_output = block.tensor(|p| &p.forward.as_ref().o);
    let [index, count] = [block.index(), block.count()];
    let shared: Shared<S, T, E, W, N, D, STAGES> = smem.split();

    block.specialize(
        shared,
        |(q, (k, (v, _)))| copy::<S, T, Mask, W, N, D, STAGES>(p, source(index, count), &tensors, q, k, v),
        |_| (),
        |mut group, (mut q, (mut k, (mut v, (mut out, of_sums))))| {
            let mut tiles = source(index, count);
            let Some(tile) = tiles.receive(&mut q) else { return };
            let (warp, first_row, zero) = (group.warp(), group.first_row(), opaque(0));
            let mut sums = Sums::<D>::new(of_sums, p.forward.as_ref().rounds.order.heads, &group);

            // The first product of the block's first tile runs beside no other product.
            let mut now = view::<T, Mask, W, N>(p, tile, warp);
            let mut q_tile = q.wait();
            let mut s = Acc::unset();
            group.run_ping_pong(AbtBytes(&mut s, &q_tile, &mut k));
            now.see_first(&mut s, &mut (), (first_row, warp));
            let (mut softmax, mut probs) = Fp8Softmax::first(&s, now.scale_log2(), warp);
            loop {
                let mut n = now.range.end - 1;
                while n > now.range.start {
                    n -= 1;
                    // S(n) = Q K(n)^T runs beside O += P(n + 1) V(n + 1).
                    probs = Sums::<D>::overlap(
                        AbtBytes(&mut Acc::unset(), &q_tile, &mut k),
                        sums.room(),
                        (&probs, &mut v),
                        &mut group,
                        &mut softmax,
                        |softmax, s| {
                            let edge = !Mask::SEES_ALL && now.is_edge(n);
                            now.see(s, &mut (), n, edge, (first_row, warp));
                            softmax.exp(s, warp)
                        },
                        |softmax, s, sums, found, grown| match grown {
                            true => softmax.rebase(s, sums, warp).renewed(zero),
                            false => softmax.keep(found).renewed(zero),
                        },
                    );
                }
                drop(q_tile);
                let Some(tile) = tiles.receive(&mut q) else { break };

                // The next tile's first S runs beside this tile's last O += P V.
                let next = view::<T, Mask, W, N>(p, tile, warp);
                q_tile = q.wait();
                let (next_softmax, first) = Sums::<D>::overlap(
                    AbtBytes(&mut Acc::unset(), &q_tile, &mut k),
                    sums.room(),
                    (&probs, &mut v),
                    &mut group,
                    &mut (),
                    |(), s| {
                        next.see_first(s, &mut (), (first_row, warp));
                        (false, Fp8Softmax::first(s, next.scale_log2(), warp))
                    },
                    |(), _, _, first, _| first,
                );
                store((p, &now), (softmax, sums.take()), (&mut out, &of_output), &mut group);
                (now, softmax, probs) = (next, next_softmax, first.renewed(zero));
            }
            Sums::<D>::add(sums.room(), (&probs, &mut v), &mut group);
            store((p, &now), (softmax, sums.take()), (&mut out, &of_output), &mut group);
        },
    );
}

impl<
    E: Mma,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
> Run for FwdHopperFp8<E, Mask, W, N, D, STAGES>
where
    E4m3: HasSums<D>,
{
    #[inline(always)]
    fn run(p: Fp8Params, block: Block<Self>, smem: Smem<Self>) {
        let source =
            |index, count| StaticScheduler(p.forward.rounds.of(index, count).map(ScaledTile::without_factor));
        across_tiles::<_, _, _, E, Mask, W, N, D, STAGES>(&p, source, block, smem)
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
> RunAs<Varlen<Self>, Sm90a> for FwdHopperFp8<E, Mask, W, N, D, STAGES>
where
    E4m3: HasSums<D>,
{
    #[inline(always)]
    fn run_as(p: <Self as Forward>::OnVarlen, block: Block<Varlen<Self>>, smem: Smem<Varlen<Self>>) {
        let source = |index, count| VarlenScheduler::<ScaledTile<SequenceTile>, Self>::of(&p, index, count);
        across_tiles::<_, _, _, E, Mask, W, N, D, STAGES>(&p, source, block, smem)
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
> RunAs<Paged<Self>, Sm90a> for FwdHopperFp8<E, Mask, W, N, D, STAGES>
where
    E4m3: HasSums<D>,
{
    #[inline(always)]
    fn run_as(p: Fp8Params<HopperPagedParams>, block: Block<Paged<Self>>, smem: Smem<Paged<Self>>) {
        let source = |index, count| VarlenScheduler::<ScaledTile<CacheTile<()>>, Self>::of(&p, index, count);
        across_tiles::<_, _, _, E, Mask, W, N, D, STAGES>(&p, source, block, smem)
    }
}
