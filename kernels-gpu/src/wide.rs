//! Forward attention for head dims whose O is more than one warp's registers hold: two warps have the same
//! rows. Each multiplies its half of the columns of Q and K, they add what they have, both take the same
//! softmax, and each has its half of the columns of V and O.
//!
//! A stage is a block of keys or of values, in turn: values are copied while scores are computed, the next
//! keys while values are multiplied. So every block of keys has two meetings, and the second is where the
//! warps add.
use crate::alibi::Alibi;
use crate::entries::Run;
use crate::forward::{ByBlock, Tile};
use crate::mask::{MaskFn, Seen, each_key_block};
use crate::softcap::softcap;
use crate::softmax::Softmax;
use crate::tensors::TensorTile;
use crate::work::TileNumber;
use cuda_std::math::opaque;
use spec::{FwdParams, FwdWide, Kernel, Lse, Tensor};
use tile::copy::TileSource;
use tile::exchange::Sums;
use tile::group::SplitGroup;
use tile::mma::{AFrag, Acc, Mma, Part, PlaceA, TensorCore};
use tile::pipeline::Ring;
use tile::shared::SharedTile;
use tile::{Block, Smem, Warp};

/// Where keys and values go, in turn.
type Stages<C, E, const N: usize, const D: usize> = Ring<SharedTile<E, N, D>, 2, ByBlock<C>>;

/// The problem of a team: its half of the columns of Q and O, of `HALF` base tiles. LSE is the first one's.
#[inline(always)]
fn half<const HALF: usize>(p: &FwdParams, team: SplitGroup<2>) -> FwdParams {
    let part = |tensor: &Tensor| tensor.columns(team.index() * HALF as u32 * 2, HALF as u32 * 2);
    let lse = Lse { base: if team.index() == 0 { p.lse.base } else { 0 }, ..p.lse };
    FwdParams { q: part(&p.q), o: part(&p.o), lse, ..*p }
}

/// The same tensor. What follows from it is computed behind this call.
#[inline(always)]
fn late(tensor: Tensor) -> Tensor {
    let late = |x: u64| (opaque((x >> 32) as u32) as u64) << 32 | opaque(x as u32) as u64;
    Tensor { batch_bytes: late(tensor.batch_bytes), head_bytes: late(tensor.head_bytes), ..tensor }
}

/// Takes in a block's scores and its values: softmax, O += P V. `fall`: ALiBi's; `seen`: where the scores
/// need a mask.
#[inline(always)]
fn weigh<E: Mma, Mask: MaskFn, const W: usize, const N: usize, const D: usize>(
    p: &FwdParams,
    (acc_o, softmax): (&mut Acc<W, D>, &mut Softmax<W>),
    mut acc_s: Acc<W, N>,
    fall: impl FnOnce(&mut Acc<W, N>),
    seen: Option<Seen<Mask, W>>,
    v: &SharedTile<E, N, D>,
    warp: Warp,
) {
    let mut probs = AFrag::zero();
    if Mask::LEFT {
        softcap(&mut acc_s, p.softcap, p.scale_log2);
        fall(&mut acc_s);
    }
    if let Some(seen) = seen {
        seen.mask(&mut acc_s);
    }
    softmax.observe(&acc_s, acc_o, warp);
    softmax.exp(&acc_s, &mut probs, Part::ALL); // P = exp2(S - max)
    acc_o.mma_ab(&probs, v, warp, |part| softmax.sum(&probs, part, warp)); // O += P V
}

impl<
    E: TensorCore,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HALF: usize,
    const Q_STEPS: usize,
> Tile for FwdWide<E, Mask, M, W, N, D, HALF, Q_STEPS>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(p: &FwdParams, tile: &P, block: &mut Block<C>, smem: Smem<C>) {
        let ((mine, team), tile_n) = (block.split_groups::<M, W, 2>(), N as u32 * 16);
        let tensors = tile.tensors::<E, D>(p, M as u32 * 16);
        let (rows, warp) = (tensors.rows, mine.warp());
        let row0 = rows.first + mine.first();
        let range = tile.share(Mask::blocks(&rows, tile_n));
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            return tile.store_nothing_seen::<_, C, M, D>(&tensors, block);
        }

        // Prologue: the last keys are under way while Q comes, straight to registers.
        let (stages, (mut sums, left)): (
            Stages<C, E, N, D>,
            (Sums<M, W, N>, PlaceA<E, M, W, HALF, Q_STEPS>),
        ) = smem.split();
        let mut k = tensors.k.walk(range.end - 1, block);
        let mut v = tensors.v.walk(range.end - 1, block);
        let mut kv = stages.start(|_, slot| slot.copy_edge(&mut k, block));
        let q = tile.tensors::<E, HALF>(&half::<HALF>(p, team), M as u32 * 16).q;
        let q = left.load(&q, rows.first, (mine, team), block);

        // Mainloop.
        let alibi = if P::PAGES { Alibi::NONE } else { Alibi::of::<Mask>(p, &rows) };
        let (mut acc_o, mut softmax) = (Acc::<W, HALF>::zero(), Softmax::new(p.scale_log2));
        let mut step = |n: u32, edge: bool| {
            let (acc_s, values) = kv.advance_and_add(
                block,
                (&mut sums, mine, team),
                (
                    |slot, block| match edge {
                        true => slot.copy_edge(&mut v, block),
                        false => slot.copy_whole(&mut v, block),
                    },
                    |slot, block| {
                        if n > range.start {
                            slot.copy_whole(&mut k, block)
                        }
                    },
                ),
                |keys| {
                    let mut acc_s = Acc::<W, N>::zero();
                    acc_s.add_abt(&q, &keys.columns(team), warp); // S = Q K^T, half of the sum
                    acc_s
                },
            );
            let seen = Seen::<Mask, W>::of(&rows, row0, n * tile_n, warp);
            let fall = |acc_s: &mut _| alibi.subtract(acc_s, &rows, row0, n * tile_n, warp);
            let state = (&mut acc_o, &mut softmax);
            weigh(p, state, acc_s, fall, edge.then_some(seen), &values.columns(team), warp);
        };
        each_key_block!(Mask, range, step);

        // Epilogue: where results go follows from the warp's number, once more, so that it costs no register
        // before.
        let left = kv.reclaim(block);
        block.forget_thread();
        let (mine, team) = block.split_groups::<M, W, 2>();
        let p = half::<HALF>(p, team);
        let p = FwdParams { o: late(p.o), ..p };
        let tensors = tile.tensors::<E, HALF>(&p, M as u32 * 16);
        tile.store::<E, M, W, HALF>(&p, &tensors, acc_o, &softmax, left.spent(team), mine);
    }
}

impl<
    E: TensorCore,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HALF: usize,
    const Q_STEPS: usize,
> Run for FwdWide<E, Mask, M, W, N, D, HALF, Q_STEPS>
{
    #[inline(always)]
    fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
        Self::tile(&p, &TileNumber(block.index()), &mut block, smem)
    }
}
