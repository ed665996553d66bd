//! The main loop in FlashAttention-2's order (Dao 2023, algorithm 1): S(n), softmax(n), O += P(n) V(n),
//! wherever the stages come from.
//!
//! Key blocks are taken from the last to the first: only the first one taken can be cut by the end of the
//! keys.
use crate::alibi::Alibi;
use crate::mask::{BlockRange, MaskFn, Rows, Seen, each_key_block};
use crate::softcap::softcap;
use crate::softmax::Softmax;
use spec::FwdParams;
use tile::group::{SplitGroup, WarpRows};
use tile::mma::{AFrag, Acc, Mma, Part, Resident};
use tile::shared::SharedTiles;
use tile::shared_layout;

shared_layout! {
    /// A K block and a V block that travel as one stage, a tile for each warp that shares the rows.
    KvStage / KvSlot<E, N, D, KV_WARPS> {
        k: SharedTiles<E, N, D, KV_WARPS>,
        v: SharedTiles<E, N, D, KV_WARPS>
    }
}

/// Where stages come from.
pub trait Stages<T> {
    /// Lets the warp `read` the next stage, which holds block `n`. Every warp that uses the source takes
    /// every stage.
    fn next(&mut self, n: u32, read: impl FnOnce(&T));
}

/// What one warp attends to.
#[derive(Clone, Copy)]
pub struct Share<const M: usize, const W: usize, const KV_WARPS: usize> {
    /// The block's rows.
    pub rows: Rows,
    /// The key blocks that they see.
    pub range: BlockRange,
    /// The warp's rows of the block's.
    pub mine: WarpRows<M, W>,
    /// The team whose tiles of a stage the warp takes.
    pub team: SplitGroup<KV_WARPS>,
}

/// O, not yet normalised, and the softmax of a warp's rows over its share of the keys.
#[inline(always)]
pub fn attend<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const KV_WARPS: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
>(
    p: &FwdParams,
    share: Share<M, W, KV_WARPS>,
    q_frag: &Resident<E, M, W, D, Q_STEPS>,
    stages: &mut impl Stages<KvStage<E, N, D, KV_WARPS>>,
) -> (Acc<W, D>, Softmax<W>) {
    let (tile_n, stage_n) = (N as u32 * 16, (N * KV_WARPS) as u32 * 16);
    let Share { rows, range, mine, team } = share;
    let (warp, row0) = (mine.warp(), rows.first + mine.first());
    let (mut acc_o, mut softmax) = (Acc::<W, D>::zero(), Softmax::new(p.scale_log2));
    let alibi = Alibi::of::<Mask>(p, &rows);
    let mut step = |n: u32, edge: bool| {
        stages.next(n, |stage| {
            let key0 = n * stage_n + team.index() * tile_n;
            let seen = Seen::<Mask, W>::of(&rows, row0, key0, warp);
            if edge && !seen.any(tile_n, warp) {
                return; // this warp's rows see none of these keys
            }
            let (mut acc_s, mut probs) = (Acc::<W, N>::zero(), AFrag::zero());
            acc_s.mma_abt(q_frag, &stage.k.tile(team), warp, |_| {}); // S = Q K^T
            if Mask::LEFT {
                softcap(&mut acc_s, p.softcap, p.scale_log2);
                alibi.subtract(&mut acc_s, &rows, row0, key0, warp);
            }
            if edge {
                seen.mask(&mut acc_s);
            }
            softmax.observe(&acc_s, &mut acc_o, warp);
            softmax.exp(&acc_s, &mut probs, Part::ALL); // P = exp2(S - max)
            let v = stage.v.tile(team);
            acc_o.mma_ab(&probs, &v, warp, |part| softmax.sum(&probs, part, warp)); // O += P V
        });
    };
    each_key_block!(Mask, range, step);
    (acc_o, softmax)
}
