//! Forward attention on quantised keys: scores are products of int8, outputs products of 16 bits. It is
//! [`crate::forward::mainloop`] with other scores. docs/design/eight-bits.md has the arithmetic.
use crate::forward::ByBlock;
use crate::forward::mainloop::{Share, Stage, Stages, attend};
use crate::forward::quantised::{OnImages, QuantisedTile};
use crate::rows::Sequence;
use crate::variant::MaskFn;
use crate::variant::tile_mask::TileMask;
use spec::{FwdInt8F16, FwdParams, Kernel};
use tile::copy::{TileSource, TileWalk};
use tile::group::SplitGroup;
use tile::mma::{Acc, ByteOperand, BytePlace, Integers, KeptRows, Mma, RowPlace, Unpack};
use tile::pipeline::{Pipeline, Ready, Ring};
use tile::shared::{ByteStage, SharedTile, StageImages};
use tile::{Block, Smem, Warp};

/// A stage: values, and the integers of keys.
type Parts<E, const N: usize, const D: usize> = (SharedTile<E, N, D>, ByteStage<N, D, 0>);

/// The stages.
type KeyRing<C, E, const N: usize, const D: usize> = Ring<Parts<E, N, D>, 2, ByBlock<C>>;

/// A warp's queries as integers, and what makes scores of their products with keys.
struct Rounded<const M: usize, const W: usize, const D: usize, const HELD: usize> {
    integers: ByteOperand<W, D, HELD>,
    /// The scale of each row, and the product of the row, before rounding, and the mean of keys, which the
    /// keys lack. With it, every mask, score and sink sees whole scores.
    rows: KeptRows<M, W, 2>,
}

impl<E: Mma, const M: usize, const W: usize, const N: usize, const D: usize, const HELD: usize>
    Stage<Rounded<M, W, D, HELD>, E, W, N, D, 1> for Parts<E, N, D>
{
    #[inline(always)]
    fn scores(&self, q: &Rounded<M, W, D, HELD>, _: SplitGroup<1>, warp: Warp) -> Acc<W, N> {
        let mut acc_s = Integers::product(&q.integers, &self.1, warp).scaled(&self.1, warp);
        let [scale, of_mean] = q.rows.load();
        acc_s.fma_rows(&scale, &of_mean);
        acc_s
    }
    #[inline(always)]
    fn values(&self, _: SplitGroup<1>) -> Ready<'_, SharedTile<E, N, D>> {
        self.0.first_columns()
    }
}

/// Two stages that the block itself refills.
struct Fed<'b, C: Kernel, E: Mma, Values: TileWalk<E, N, D, Block<C>>, const N: usize, const D: usize> {
    kv: Pipeline<Parts<E, N, D>, 2, ByBlock<C>>,
    images: StageImages<N, D, 0>,
    v: Values,
    /// The last key block that the loop takes.
    start: u32,
    block: &'b mut Block<C>,
}

impl<C: Kernel, E: Mma, Values: TileWalk<E, N, D, Block<C>>, const N: usize, const D: usize>
    Stages<Parts<E, N, D>> for Fed<'_, C, E, Values, N, D>
{
    #[inline(always)]
    fn next(&mut self, n: u32, read: impl FnOnce(&Parts<E, N, D>)) {
        let Fed { kv, images, v, start, block } = self;
        read(&kv.advance(block, |(values, keys), block| {
            if n > *start {
                values.copy_whole(v, block);
                keys.copy(images, n - 1, block);
            }
        }))
    }
}

impl<
    E: Mma + Unpack,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
> OnImages for FwdInt8F16<E, Mask, M, W, N, D, HELD>
{
    #[inline(always)]
    fn tile<C: Kernel, P: QuantisedTile>(
        p: &FwdParams,
        tile: &P,
        again: impl Fn(&Block<C>) -> P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        const { assert!(!Mask::SINK && !Mask::LISTED, "images follow no list, and no kernel adds sinks") }
        let (mine, team) = block.split_groups::<M, W, 1>();
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, true);
        let rows = tensors.rows;
        let of = Sequence::of(p, &rows, tile.before(), block);
        let tile_n = N as u32 * 16;
        let mask = Mask::tile(&(), &of, [M as u32 * 16, tile_n]).uniform(mine.warp());
        let range = mask.range(&rows, tile_n);
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            return tile.store_nothing_seen::<_, C, M, D, D>(p, &tensors, f32::NEG_INFINITY, block);
        }

        // Prologue: the last stage is in flight while each warp rounds its rows of Q.
        let (ring, (q, kept)): (KeyRing<C, E, N, D>, (BytePlace<M, W, D, HELD>, RowPlace<M, W, 2>)) =
            smem.split();
        let (images, means) = tile.images(p);
        let mut v = tensors.v.walk(range.end - 1, block);
        let kv = ring.start(|_, (values, keys)| {
            values.copy_edge(&mut v, block);
            keys.copy(&images, range.end - 1, block);
        });
        let of_mean = tensors.q.dot(rows.first, mine, &means);
        let (integers, scale) = q.quantise(&tensors.q, rows.first, mine, block);

        // Mainloop.
        let mut stages = Fed { kv, images, v, start: range.start, block };
        let share = Share { rows, of, mask, range, mine, team };
        let q = Rounded { integers, rows: kept.keep([scale, of_mean], stages.block) };
        let (acc_o, softmax) = attend::<E, Mask, _, _, M, W, 1, N, D>((p, &()), share, &q, &mut stages);

        // Epilogue.
        let Fed { kv, block, .. } = stages;
        let tile = again(block);
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, true);
        tile.store::<E, M, W, D, D>(p, &tensors, acc_o, &softmax, kv.reclaim(block).spent(team), mine);
    }
}
