//! The main loop in FlashAttention-2's order (Dao 2023, algorithm 1): S(n), softmax(n), O += P(n) V(n). The
//! stages come from any source.
//!
//! The loop takes key blocks from the last to the first. The end of the keys can therefore cut only the first
//! block that the loop takes.
use crate::capped::Capped;
use crate::rows::{Rows, Sequence};
use crate::softmax::{Exponents, Softmax};
use crate::variant::block_bias::BlockBias;
use crate::variant::blocks::{At, BlockRange, Seen, each_key_block};
use crate::variant::softcap::softcap;
use crate::variant::tile_mask::TileMask;
use crate::variant::{MaskFn, Scores};
use spec::{FwdParams, MaskKind};
use tile::group::{SplitGroup, WarpRows};
use tile::mma::{AFrag, Acc, Mma, Part, Resident};
use tile::pipeline::Ready;
use tile::shared::{SharedTile, SharedTiles};
use tile::{Warp, shared_layout};

shared_layout! {
    /// A stage: a K block and a V block. Each warp that shares the rows has its own tile of both blocks.
    KvStage / KvSlot<E, N, D, DV, KV_WARPS> {
        k: SharedTiles<E, N, D, KV_WARPS>,
        v: SharedTiles<E, N, DV, KV_WARPS>
    }
}

/// A stage, whose keys make scores with queries of type `Q`.
pub trait Stage<Q, E, const W: usize, const N: usize, const DV: usize, const KV_WARPS: usize> {
    /// The products of a warp's queries and the keys of its split group.
    fn scores(&self, q: &Q, team: SplitGroup<KV_WARPS>, warp: Warp) -> Acc<W, N>;
    /// The values of a split group.
    fn values(&self, team: SplitGroup<KV_WARPS>) -> Ready<'_, SharedTile<E, N, DV>>;
}

impl<
    E: Mma,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const DV: usize,
    const KV_WARPS: usize,
    const Q_STEPS: usize,
> Stage<Resident<'_, E, M, W, D, Q_STEPS>, E, W, N, DV, KV_WARPS> for KvStage<E, N, D, DV, KV_WARPS>
{
    #[inline(always)]
    fn scores(
        &self,
        q: &Resident<'_, E, M, W, D, Q_STEPS>,
        team: SplitGroup<KV_WARPS>,
        warp: Warp,
    ) -> Acc<W, N> {
        let mut acc_s = Acc::zero();
        acc_s.mma_abt(q, &self.k.tile(team), warp, |_| {});
        acc_s
    }
    #[inline(always)]
    fn values(&self, team: SplitGroup<KV_WARPS>) -> Ready<'_, SharedTile<E, N, DV>> {
        self.v.tile(team)
    }
}

/// A source of stages.
pub trait Stages<T> {
    /// Waits for the next stage, which contains block `n`, and lets the warp `read` the stage. Every warp
    /// that uses the source must take every stage.
    fn next(&mut self, n: u32, read: impl FnOnce(&T));
}

/// One warp's share of a work tile, under a mask of type `Mask`.
#[derive(Clone, Copy)]
pub struct Share<Mask, const M: usize, const W: usize, const KV_WARPS: usize> {
    /// The work tile's rows.
    pub rows: Rows,
    /// The sequence of the work tile's rows.
    pub of: Sequence,
    /// The mask.
    pub mask: Mask,
    /// The key blocks that the rows see.
    pub range: BlockRange,
    /// The rows of this warp.
    pub mine: WarpRows<M, W>,
    /// The warp's split group, which has its own tile of each stage.
    pub team: SplitGroup<KV_WARPS>,
}

/// Changes a warp's scores of a block. If a modification may serve whole blocks, returns the block's
/// exponents, which contain the modification that is left.
#[inline(always)]
fn change<S: Scores, const W: usize, const N: usize>(
    scores: S,
    p: &impl Capped,
    acc_s: &mut Acc<W, N>,
    at: At,
) -> Option<Exponents> {
    if !S::BLOCK_BIAS {
        scores.change(p, acc_s, at);
        return None;
    }
    let [position, key] = at.first();
    let range = |first: i32, tiles: usize| first..first.wrapping_add(16 * tiles as i32);
    let bias = scores.of_block(range(position, W), range(key, N));
    // The vote keeps the warp converged, whatever the caller's function depends on.
    let is_one = !at.warp.any(bias.is_none());
    if !is_one {
        scores.change(p, acc_s, at);
    }
    let bias = bias.filter(|_| is_one).unwrap_or(BlockBias::NONE);
    Some(bias.exponents(S::scale_log2(p)))
}

/// The accumulators of O (not yet normalised) and the softmax, of a warp's rows over the warp's share of the
/// keys.
#[inline(always)]
pub fn attend<
    E: Mma,
    Mask: MaskFn,
    Q,
    T: Stage<Q, E, W, N, DV, KV_WARPS>,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const DV: usize,
>(
    (p, params): (&FwdParams, &Mask::Params),
    share: Share<Mask::Tile, M, W, KV_WARPS>,
    q: &Q,
    stages: &mut impl Stages<T>,
) -> (Acc<W, DV>, Softmax<W>) {
    let (tile_n, stage_n) = (N as u32 * 16, (N * KV_WARPS) as u32 * 16);
    let Share { rows, of, mask, range, mine, team } = share;
    let (warp, row0) = (mine.warp(), rows.first + mine.first());
    let (mut acc_o, mut softmax) = (Acc::<W, DV>::zero(), Softmax::of(p, Mask::Scores::scale_log2(p)));
    let scores = Mask::scores(p, params, &of);
    let mut step = |n: u32, edge: bool| {
        stages.next(n, |stage| {
            let key0 = n * stage_n + team.index() * tile_n;
            let mut at = At { rows: &rows, row0, key0, warp };
            // Masks without lists make no call: a call that does nothing changes the kernels of local masks.
            if Mask::LISTED {
                at.key0 = at.key0.wrapping_add(mask.block(n).wrapping_sub(n).wrapping_mul(stage_n));
            }
            let seen = Seen::<_, W>::of(mask.keys(), at);
            if edge && !seen.any(tile_n, warp) {
                return; // no row of this warp sees a key of this tile
            }
            let (mut acc_s, mut probs) = (stage.scores(q, team, warp), AFrag::zero()); // S = Q K^T
            if matches!(Mask::KIND, MaskKind::Bits) {
                softcap(&mut acc_s, p.softcap, p.scale_log2);
            }
            let own = change(scores, p, &mut acc_s, at);
            if edge {
                seen.mask(&mut acc_s, at);
            }
            softmax.observe(&acc_s, own, &mut acc_o, warp);
            softmax.exp(&acc_s, own, &mut probs, Part::ALL); // P = exp2(S - max)
            let v = stage.values(team);
            acc_o.mma_ab(&probs, &v, warp, |part| softmax.sum(&probs, part, warp)); // O += P V
        });
    };
    each_key_block!(Mask, range, step);
    (acc_o, softmax)
}
