//! Forward attention for head dims whose O exceeds one warp's registers. Two warps share the same rows. Each
//! warp multiplies its half of the columns of Q and K. The warps add their partial scores. Both warps then
//! compute the same softmax. Each warp has its half of the columns of V and O.
//!
//! Stages alternate between blocks of keys and blocks of values. Values arrive while the warps compute
//! scores; the next keys arrive during P V. Each key block therefore has two barriers. The warps add their
//! scores behind the second barrier.
use crate::entries::{Portable, Run};
use crate::forward::{ByBlock, Tile};
use crate::rows::Sequence;
use crate::softmax::Softmax;
use crate::tensors::TensorTile;
use crate::variant::blocks::{At, BlockRange, Seen, each_key_block};
use crate::variant::mask::MaskMod;
use crate::variant::{MaskFn, Scores};
use crate::work::Unsloped;
use cuda_std::math::opaque;
use spec::{FwdParams, FwdWide, Kernel, Tensor};
use tile::copy::TileSource;
use tile::exchange::Sums;
use tile::group::SplitGroup;
use tile::mma::{AFrag, Acc, Mma, Part, PlaceA, TensorCore};
use tile::pipeline::Ring;
use tile::shared::SharedTile;
use tile::{Block, Smem};

/// The stages, which alternate between keys and values.
type Stages<C, E, const N: usize, const D: usize> = Ring<SharedTile<E, N, D>, 2, ByBlock<C>>;

/// The problem of one split group: its half of the columns of Q and O, which has `HALF` base tiles. Only the
/// first group stores the values of rows.
#[inline(always)]
fn half<const HALF: usize>(p: &FwdParams, team: SplitGroup<2>) -> FwdParams {
    let part = |tensor: &Tensor| tensor.columns(team.index() * HALF as u32 * 2, HALF as u32 * 2);
    p.part(part(&p.q), part(&p.o), team.index() == 0)
}

/// Hides `tensor` from the compiler, so that the compiler computes addresses behind this call.
#[inline(always)]
fn late(tensor: Tensor) -> Tensor {
    let late = |x: u64| (opaque((x >> 32) as u32) as u64) << 32 | opaque(x as u32) as u64;
    Tensor { batch_bytes: late(tensor.batch_bytes), head_bytes: late(tensor.head_bytes), ..tensor }
}

/// Processes a block's scores and values: softmax, O += P V. `seen` is the mask, or `None` if the scores need
/// no mask.
#[inline(always)]
fn weigh<E: Mma, M: MaskMod, const W: usize, const N: usize, const D: usize>(
    p: &FwdParams,
    (acc_o, softmax): (&mut Acc<W, D>, &mut Softmax<W>),
    mut acc_s: Acc<W, N>,
    scores: impl Scores,
    seen: Option<Seen<M, W>>,
    v: &SharedTile<E, N, D>,
    at: At,
) {
    let (mut probs, warp) = (AFrag::zero(), at.warp);
    scores.change(p, &mut acc_s, at);
    if let Some(seen) = seen {
        seen.mask(&mut acc_s, at);
    }
    softmax.observe(&acc_s, None, acc_o, warp);
    softmax.exp(&acc_s, None, &mut probs, Part::ALL); // P = exp2(S - max)
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
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &Mask::Params,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        const { assert!(!Mask::LISTED, "`FwdWide` takes ranges of key blocks: `BlockSparse` needs `Fwd`") }
        let ((mine, team), tile_n) = (block.split_groups::<M, W, 2>(), N as u32 * 16);
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        let (rows, warp) = (tensors.rows, mine.warp());
        let row0 = rows.first + mine.first();
        let of = Sequence::of(p, &rows, tile.before(), block);
        let mask = Mask::keys(variant, &of);
        let range = tile.share(BlockRange::of(mask, &rows, tile_n));
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            let sink = Mask::sink(variant, &of, tile.counts_sink());
            return tile.store_nothing_seen::<_, C, M, D, D>(p, &tensors, sink, block);
        }

        // Prologue: the last keys are copied while the block loads Q into registers.
        let (stages, (mut sums, left)): (
            Stages<C, E, N, D>,
            (Sums<M, W, N>, PlaceA<E, M, W, HALF, Q_STEPS>),
        ) = smem.split();
        let mut k = tensors.k.walk(range.end - 1, block);
        let mut v = tensors.v.walk(range.end - 1, block);
        let mut kv = stages.start(|_, slot| slot.copy_edge(&mut k, block));
        let q = tile.tensors::<E, HALF, HALF>(&half::<HALF>(p, team), M as u32 * 16, false).q;
        let q = left.load(&q, rows.first, (mine, team), block);

        // Mainloop.
        let scores = match P::PAGES {
            true => Mask::scores(&Unsloped(p), variant, &of),
            false => Mask::scores(p, variant, &of),
        };
        let (mut acc_o, mut softmax) = (Acc::<W, HALF>::zero(), Softmax::of(p, Mask::Scores::scale_log2(p)));
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
            let at = At { rows: &rows, row0, key0: n * tile_n, warp };
            let seen = Seen::<_, W>::of(mask, at);
            let state = (&mut acc_o, &mut softmax);
            weigh(p, state, acc_s, scores, edge.then_some(seen), &values.columns(team), at);
        };
        each_key_block!(Mask, range, step);

        // Epilogue: the warp computes the places of results again from its number, so that they take no
        // registers earlier.
        if Mask::SINK {
            softmax.add_sink(Mask::sink(variant, &of, tile.counts_sink()), &mut acc_o);
        }
        let left = kv.reclaim(block);
        block.forget_thread();
        let (mine, team) = block.split_groups::<M, W, 2>();
        let p = half::<HALF>(p, team);
        let p = FwdParams { o: late(p.o), ..p };
        let tensors = tile.tensors::<E, HALF, HALF>(&p, M as u32 * 16, false);
        tile.store::<E, M, W, HALF, HALF>(&p, &tensors, acc_o, &softmax, left.spent(team), mine);
    }
}

impl<
    E: TensorCore,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HALF: usize,
    const Q_STEPS: usize,
> Run for FwdWide<E, Mask, M, W, N, D, HALF, Q_STEPS>
{
    #[inline(always)]
    fn run(p: FwdParams, block: Block<Self>, smem: Smem<Self>) {
        Self::body(&p, &(), block, smem)
    }
}
