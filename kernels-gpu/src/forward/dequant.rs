//! Forward attention on keys and values of another type than the operands ([`crate::forward::mainloop`]): the
//! block converts each stage in shared memory, once for all warps. Scales cost nothing per element: the keys'
//! scale is a factor of the scores' scale, the values' scale a factor of O. Scales of rows are a part of the
//! conversion, which rounds each product.
use crate::capped::times;
use crate::forward::mainloop::{KvStage, Share, Stages, attend};
use crate::forward::{ByBlock, QPlace, Tile};
use crate::rows::Sequence;
use crate::tensors::TensorTile;
use crate::variant::MaskFn;
use crate::variant::tile_mask::TileMask;
use attention_tile::ScalesDown;
use spec::{FwdDequant, FwdParams, Kernel};
use tile::copy::{TileSource, TileWalk, Walk};
use tile::mma::{Mma, Resident};
use tile::pipeline::{Conversion, Converter};
use tile::shared::{ConvertTo, CopiedScales, Scaled, StageScales};
use tile::{Block, Smem};

/// The places of keys and values: as they are stored, and converted.
type KvPlace<C, E, S, const N: usize, const D: usize> =
    Conversion<Stored<S, N, D>, KvStage<E, N, D, D, 1>, ByBlock<C>>;
/// A stage as it is stored, with the scales of its rows, if rows have scales.
type Stored<S, const N: usize, const D: usize> = (KvStage<S, N, D, D, 1>, <S as Scaled>::Scales<N>);

/// Stages that the block itself refills and converts, one block ahead of their use.
struct Converted<
    'b,
    C: Kernel,
    E: Mma,
    S: ConvertTo<E>,
    Tiles: TileWalk<S, N, D, Block<C>>,
    const N: usize,
    const D: usize,
> {
    kv: Converter<Stored<S, N, D>, KvStage<E, N, D, D, 1>, ByBlock<C>>,
    k: Tiles,
    v: Tiles,
    scales: ScalesDown<'b, S::Scales<N>, Block<C>>,
    /// The last block that the loop takes.
    start: u32,
    block: &'b mut Block<C>,
}

impl<C: Kernel, E: Mma, S: ConvertTo<E>, Tiles: TileWalk<S, N, D, Block<C>>, const N: usize, const D: usize>
    Stages<KvStage<E, N, D, D, 1>> for Converted<'_, C, E, S, Tiles, N, D>
{
    #[inline(always)]
    fn next(&mut self, n: u32, read: impl FnOnce(&KvStage<E, N, D, D, 1>)) {
        let Converted { kv, k, v, scales, start, block } = self;
        let stage = kv.advance(
            block,
            |slot, (stored, scales), block| {
                slot.k.convert(&stored.k, |row| scales.load(0, row), block);
                slot.v.convert(&stored.v, |row| scales.load(1, row), block);
            },
            |(slot, to), block| {
                if n > *start {
                    slot.k.copy_whole(k, block);
                    slot.v.copy_whole(v, block);
                    scales.copy(to, n - 1, block);
                }
            },
        );
        read(&stage)
    }
}

/// The problem for products of unscaled keys, which are scores divided by `factor`.
#[inline(always)]
fn scaled(p: &FwdParams, factor: f32) -> FwdParams {
    match p.softcap == 0.0 {
        true => FwdParams { scale_log2: times(p.scale_log2, factor), ..*p },
        false => FwdParams { softcap: times(p.softcap, factor), ..*p },
    }
}

impl<
    E: Mma,
    S: ConvertTo<E>,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const Q_STEPS: usize,
> Tile for FwdDequant<E, S, Mask, M, W, N, D, Q_STEPS>
{
    #[inline(always)]
    fn tile<C: Kernel, P: TensorTile>(
        p: &FwdParams,
        variant: &Mask::Params,
        tile: &P,
        block: &mut Block<C>,
        smem: Smem<C>,
    ) {
        let (mine, team) = block.split_groups::<M, W, 1>();
        let tensors = tile.tensors::<E, D, D>(p, M as u32 * 16, false);
        const { assert!(P::PAGES || !S::Scales::<N>::EXIST, "only rows of a cache have scales") }
        const { assert!(!Mask::LISTED || !S::Scales::<N>::EXIST, "scales follow no list of key blocks") }
        let row_scales = if S::Scales::<N>::EXIST { tile.row_scales() } else { None };
        let factor =
            |which| if S::Scales::<N>::EXIST { 1.0 } else { tile.scale(which, &mine.warp()) * S::FACTOR };
        let p = &scaled(p, factor(0));
        let rows = tensors.rows;
        let of = Sequence::of(p, &rows, tile.before(), block);
        let tile_n = N as u32 * 16;
        let mask = Mask::tile(variant, &of, [M as u32 * 16, tile_n]).uniform(mine.warp());
        let range = tile.share(mask.range(&rows, tile_n));
        if P::may_see_nothing::<Mask>() && range.start == range.end {
            let sink = Mask::sink(variant, &of, tile.counts_sink());
            return tile.store_nothing_seen::<_, C, M, D, D>(p, &tensors, sink, block);
        }

        // Prologue: Q and the last key/value block, both in flight.
        let (q, stages): (QPlace<C, E, M, D>, KvPlace<C, E, S, N, D>) = smem.split();
        let [k, v] = tile.stored::<S, D>(p).map(|rows| rows.walk(range.end - 1, block));
        let next = mask.next(range);
        let mut k = mask.lead(k, &next, (1, false), block);
        let mut v = mask.lead(v, &next, (1, true), block);
        let q = q.fill(|slot| slot.copy_edge(&mut Walk::down(tensors.q, tensors.m_block, block), block));
        let mut scales = ScalesDown::new(row_scales, range.end - 1, block);
        let kv = stages.start(|(slot, to)| {
            slot.k.copy_edge(&mut k, block);
            slot.v.copy_edge(&mut v, block);
            scales.copy(to, range.end - 1, block);
        });
        let q_tile = q.land(block);
        let q_frag = Resident::<_, M, W, D, Q_STEPS>::load(&q_tile, mine);

        // Mainloop.
        let mut stages = Converted { kv, k, v, scales, start: range.start, block };
        let share = Share { rows, of, mask, range, mine, team };
        let (mut acc_o, mut softmax) =
            attend::<E, Mask, _, _, M, W, 1, N, D>((p, variant), share, &q_frag, &mut stages);

        // Epilogue.
        if Mask::SINK {
            softmax.add_sink(Mask::sink(variant, &of, tile.counts_sink()), &mut acc_o);
        }
        let factor = factor(1);
        acc_o.map(|x| x * factor);
        tile.store::<E, M, W, D, D>(p, &tensors, acc_o, &softmax, q_tile.spent(), mine);
    }
}
