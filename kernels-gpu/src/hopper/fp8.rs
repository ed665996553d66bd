//! Forward attention with products of e4m3, in the schedule of [`super::forward`]. docs/design/eight-bits.md
//! has the arithmetic.
//!
//! Products of eight bits read both operands along k, so values lie transposed in memory. Sums of the second
//! product are [`ShortSums`]: the tensor core adds at most 512 keys.
use crate::entries::Run;
use crate::hopper::mainloop::{QTiles, View};
use crate::hopper::scheduler::{Scheduler, StaticScheduler};
use crate::softmax::NONE;
use crate::variant::{MaskFn, Scores};
use attention_tile::{head_of, load_per_head};
use core::f32::consts::LN_2;
use cuda_std::math::{ex2, fma, lg2, opaque, rcp};
use spec::{E4m3, Fp8Params, FwdHopperFp8, TensorMap, WorkTile};
use tile::epilogue::StoreBuffer;
use tile::global::GlobalVec;
use tile::group::Warpgroup;
use tile::mma::{Acc, ByteFrag, Mma, RowVec};
use tile::pipeline::{MbarrierPipeline, Producer};
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};
use tile::wgmma::{AbBytes, AbtBytes, ShortSums, Totals};
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
        sums: &mut ShortSums<D>,
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

/// A block's shared memory: pipelines of Q, K and V, the store buffer of O, and the totals of O.
type Shared<E, const W: usize, const N: usize, const D: usize, const STAGES: usize> = (
    MbarrierPipeline<QTiles<E4m3, W, D>, 2, Tma>,
    (
        MbarrierPipeline<SharedTile<E4m3, N, D>, STAGES, Tma>,
        (MbarrierPipeline<SharedTile<E4m3, D, N>, STAGES, Tma>, (StoreBuffer<E, D, W>, Totals<D, W>)),
    ),
);

/// A work tile under the kernel's mask, and its scales.
struct Tile<'p, Mask: MaskFn<Params = ()>, const W: usize, const N: usize> {
    p: &'p Fp8Params,
    view: View<'p, WorkTile, Mask, W, N>,
}

impl<'p, Mask: MaskFn<Params = (), Staged = ()>, const W: usize, const N: usize> Tile<'p, Mask, W, N> {
    #[inline(always)]
    fn new(p: &'p Fp8Params, tile: WorkTile, warp: Warp) -> Self {
        Tile { p, view: View::of(&p.forward, &(), tile, &warp) }
    }

    /// The scale of the tile's queries (0), keys (1) or values (2).
    #[inline(always)]
    fn scale_of(&self, which: usize, warp: Warp) -> f32 {
        let WorkTile { batch, kv_head, .. } = self.view.tile;
        load_per_head(&self.p.scales[which], head_of(batch, kv_head, &warp))
    }

    /// Factor that converts scores to exponents of 2.
    #[inline(always)]
    fn scale_log2(&self, warp: Warp) -> f32 {
        let scale = self.view.scale_log2() * self.scale_of(0, warp) * self.scale_of(1, warp);
        // With a factor of 0, the score of a hidden key would be NaN.
        if scale == 0.0 { f32::MIN_POSITIVE } else { scale }
    }

    /// Normalises O and stores it, and stores the LSE.
    #[inline(always)]
    fn store<E: Mma, const D: usize>(
        &self,
        (softmax, mut acc_o): (Fp8Softmax, Acc<1, D>),
        (out, to): (&mut StoreBuffer<E, D, W>, &TmaTensor<E, 4, D, TensorMap>),
        group: &mut Warpgroup<W>,
    ) {
        let warp = group.warp();
        let (normalise, lse) = softmax.finish(warp);
        let of_values = self.scale_of(2, warp);
        acc_o.map(|x| x * of_values);
        acc_o.scale_or_clear_rows(&normalise);
        out.store(&acc_o, to, self.view.queries(), group);
        let WorkTile { batch, head, .. } = self.view.tile;
        let lacks = GlobalVec::new(&self.p.lse_lacks, batch, head, self.p.forward.q_len);
        self.view.store_lse(&lse, &lacks, group);
    }
}

/// The tensors of Q and K, and of V, transposed.
type Tensors<const N: usize, const D: usize> =
    (TmaTensor<E4m3, 4, D, TensorMap>, TmaTensor<E4m3, N, D, TensorMap>, TmaTensor<E4m3, D, N, TensorMap>);

/// The producer: starts the copies of Q, K and V of every work tile. A block of values follows the next block
/// of keys, even if that key block belongs to the next tile.
#[inline(always)]
fn copy<
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
>(
    p: &Fp8Params,
    tiles: impl Iterator<Item = WorkTile>,
    (of_queries, of_keys, of_values): &Tensors<N, D>,
    mut q: Producer<QTiles<E4m3, W, D>, 2, Tma>,
    mut k: Producer<SharedTile<E4m3, N, D>, STAGES, Tma>,
    mut v: Producer<SharedTile<E4m3, D, N>, STAGES, Tma>,
) {
    let mut behind = None;
    for tile in tiles {
        let view = View::<WorkTile, Mask, W, N>::of(&p.forward, &(), tile, &k);
        q.load(of_queries, view.queries());
        for n in (view.range.start..view.range.end).rev() {
            let [_, head, batch] = view.keys(n);
            k.load(of_keys, view.keys(n));
            // Each block of keys has a tile of `16 D` rows of V^T.
            if let Some(values) = behind.replace([n * D as u32 * 16, head, batch]) {
                v.load(of_values, values);
            }
        }
    }
    if let Some(values) = behind {
        v.load(of_values, values);
    }
}

impl<
    E: Mma,
    Mask: MaskFn<Params = (), Staged = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
> Run for FwdHopperFp8<E, Mask, W, N, D, STAGES>
{
    #[inline(always)]
    fn run(p: Fp8Params, block: Block<Self>, smem: Smem<Self>) {
        const { assert!(Mask::Scores::IS_NONE && !Mask::SINK && !Mask::LISTED, "scores stay as they are") }
        let tensors: Tensors<N, D> =
            (block.tensor(|p| &p.forward.q), block.tensor(|p| &p.forward.k), block.tensor(|p| &p.forward.v));
        let of_output = block.tensor(|p| &p.forward.o);
        let (p, rounds, [index, count]) = (&p, p.forward.rounds, [block.index(), block.count()]);
        let shared: Shared<E, W, N, D, STAGES> = smem.split();

        block.specialize(
            shared,
            |(q, (k, (v, _)))| copy::<Mask, W, N, D, STAGES>(p, rounds.of(index, count), &tensors, q, k, v),
            |_| (),
            |mut group, (mut q, (mut k, (mut v, (mut out, totals))))| {
                let mut tiles = StaticScheduler(rounds.of(index, count));
                let Some(tile) = tiles.receive(&mut q) else { return };
                let (warp, first_row, zero) = (group.warp(), group.first_row(), opaque(0));
                let mut sums = totals.sums(&group);

                // The first product of the block's first tile runs beside no other product.
                let mut now = Tile::<Mask, W, N>::new(p, tile, warp);
                let mut q_tile = q.wait();
                let mut s = Acc::unset();
                group.run_ping_pong(AbtBytes(&mut s, &q_tile, &mut k));
                now.view.see_first(&mut s, &mut (), (first_row, warp));
                let (mut softmax, mut probs) = Fp8Softmax::first(&s, now.scale_log2(warp), warp);
                loop {
                    let mut n = now.view.range.end - 1;
                    while n > now.view.range.start {
                        n -= 1;
                        // S(n) = Q K(n)^T runs beside O += P(n + 1) V(n + 1).
                        probs = group.overlap(
                            AbtBytes(&mut Acc::unset(), &q_tile, &mut k),
                            AbBytes(sums.room(), &probs, &mut v),
                            &mut softmax,
                            |softmax, s| {
                                let edge = !Mask::SEES_ALL && now.view.is_edge(n);
                                now.view.see(s, &mut (), n, edge, (first_row, warp));
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
                    let next = Tile::new(p, tile, warp);
                    q_tile = q.wait();
                    let scale_log2 = next.scale_log2(warp);
                    let (next_softmax, first) = group.overlap(
                        AbtBytes(&mut Acc::unset(), &q_tile, &mut k),
                        AbBytes(sums.room(), &probs, &mut v),
                        &mut (),
                        |(), s| {
                            next.view.see_first(s, &mut (), (first_row, warp));
                            (false, Fp8Softmax::first(s, scale_log2, warp))
                        },
                        |(), _, _, first, _| first,
                    );
                    now.store((softmax, sums.take()), (&mut out, &of_output), &mut group);
                    (now, softmax, probs) = (next, next_softmax, first.renewed(zero));
                }
                group.run(AbBytes(sums.room(), &probs, &mut v));
                now.store((softmax, sums.take()), (&mut out, &of_output), &mut group);
            },
        );
    }
}
