//! The gradient of a table that a caller's scores read: of each entry, the sum of the gradients of the
//! scores that read it, times their derivatives by it. Each lane adds to its own sums of the entries, so the
//! order of all additions is fixed. Each work tile leaves its sums in memory. Of the work tiles of a head,
//! the one that ends last adds the sums of all, in the order of the tiles.
use crate::backward::pair::{PairRing, PairSlot, QueryBlock};
use crate::backward::sequence::TileSequence;
use crate::entries::Portable;
use crate::forward::ByBlock;
use crate::rows::Sequence;
use crate::variant::blocks::BlockRange;
use crate::variant::{MaskFn, Scores};
use spec::{BwdTable, BwdTableParams, Kernel, TABLE_ENTRIES};
use tile::exchange::LaneSums;
use tile::global::{FillInts, GlobalPartials};
use tile::mma::Mma;
use tile::{Block, Smem, Steps};

impl<
    E: Mma,
    Mask: MaskFn,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const DV: usize,
> Portable for BwdTable<E, Mask, M, W, N, D, STAGES, DV>
{
    #[inline(always)]
    fn body<C: Kernel>(p: &BwdTableParams, variant: &Mask::Params, mut block: Block<C>, smem: Smem<C>) {
        const {
            assert!(!Mask::LISTED, "backward kernels take ranges of keys, no lists of key blocks");
            assert!(
                Mask::Scores::TABLE,
                "no score of this mask has a `TABLE`, or two have one, or the mask has scores, too: put all \
                 scores into one tuple behind a mask without scores"
            );
        }
        let (BwdTableParams { problem: p, partials, dtable, counters, groups, m_blocks, .. }, all, block) =
            (p, p, &mut block);
        let (index, group) = groups.div_rem(block.index());
        let (tile, tile_m, tile_n) = (p.order.tile(index), M as u32 * 16, N as u32 * 16);
        let first = group * TABLE_ENTRIES as u32;
        let (ring, sums): (PairRing<C, E, M, N, D, DV, STAGES>, LaneSums<TABLE_ENTRIES, M, W>) = smem.split();
        let mut sums = sums.begin(block);

        // A tile that does not exist at the current lengths of sequences adds 0.
        if let Some(own) = TileSequence::find::<false>(p, tile, tile_m, block.warp()) {
            let of = QueryBlock { p, own, tile_m };
            let rows = of.rows();
            let sequence = Sequence::of(p, &rows, 0, block);
            let mask = Mask::keys(variant, &sequence);
            let range = BlockRange::of(mask, &rows, tile_n);
            let mut left = range.end.saturating_sub(range.start);
            let mut next = |slot: &PairSlot<E, M, N, D, DV, ByBlock<C>>, block: &Block<C>| {
                if left > 0 {
                    left -= 1;
                    of.copy(range.start + left, slot, block);
                }
            };
            let mut stages = ring.start(|_, slot| next(slot, block));
            let scores = Mask::scores(p, variant, &sequence);
            for n in (range.start..range.end).rev() {
                let pair = stages.advance(block, |slot, block| next(slot, block));
                let (mine, _) = block.split_groups::<M, W, 1>();
                let [mut weights, mut ds] =
                    of.gradients::<Mask, E, M, W, N, D, DV>((mask, scores), n, &pair, mine);
                let at = [rows.position(rows.first + mine.first()), (n * tile_n) as i32];
                weights.map_at(at, mine.warp(), |s, p, k| scores.weight(s, p, k));
                ds.zip(&weights, |ds, weight| if ds == 0.0 { 0.0 } else { ds * weight });
                ds.each_at(at, mine.warp(), |ds, p, k| {
                    let entry = scores.entry(p, k).min(partials.entries() - 1);
                    sums.add(entry.wrapping_sub(first), ds);
                });
            }
        }
        let (entries, parts) = (partials.entries(), GlobalPartials::new(partials, block));
        sums.total(block, |i, sum, is_mine| parts.store(index, first + i, sum, is_mine));

        // Epilogue of the head's last work tile.
        let tiles = all.batches * m_blocks.get();
        if block.is_last_of(tiles, counters, tile.head * groups.get() + group) {
            let warp = block.warp();
            for i in (Steps { at: warp.index(), step: block.warps(), end: TABLE_ENTRIES as u32 }) {
                let mut sum = 0.0;
                for of_head in (Steps { at: warp.lane(), step: 32, end: tiles }) {
                    let (batch, within) = m_blocks.div_rem(of_head);
                    let of_batch = (batch * p.order.heads.get() + tile.head) * m_blocks.get();
                    sum += parts.get(of_batch + within, first + i);
                }
                let (sum, is_mine) = (warp.total(sum), warp.lane() == 0 && first + i < entries);
                FillInts::new(dtable, block).store(tile.head * entries + first + i, sum.to_bits(), is_mine);
            }
        }
    }
}
