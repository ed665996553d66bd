//! Two numbers per query, which the other kernels read beside scores: minus the LSE, and delta.
use crate::backward::sequence::{ascend, padded};
use crate::entries::Run;
use core::f32::consts::LOG2_E;
use spec::{BwdDelta, BwdDeltaParams, DELTA_ROWS};
use tile::beside::HeadValues;
use tile::global::{FillInts, GlobalRows, GlobalVec, LoadEight};
use tile::group::ThreadGroup;
use tile::{Block, Smem};

/// A ticket behind those of all work tiles, and behind those that blocks may still take.
const NO_TICKET: u32 = 1 << 31;

impl<E: LoadEight, const DV: usize> Run for BwdDelta<E, DV> {
    /// Padding rows, and rows that see no key, get minus infinity and 0, so that they have no weight.
    ///
    /// If offsets of sequences descend, Hopper's kernel finds no ticket: its turns would not follow each
    /// other, and it would wait forever.
    #[inline(always)]
    fn run(p: BwdDeltaParams, block: Block<Self>, _: Smem<Self>) {
        let thread = block.index() * DELTA_ROWS * 4 + block.member();
        let (of_all, part) = p.blocks.div_rem(block.index());
        let ((batch, head), warp) = (p.heads.div_rem(of_all), block.warp());
        let is_first = p.cleared.count() > 0 && block.index() == 0 && warp.index() == 0;
        let has_none = is_first && !ascend(&p.sequences, warp) && thread == 0;
        FillInts::new(&p.cleared, &block).store(thread, if has_none { NO_TICKET } else { 0 }, true);
        let (own, first) = padded(&p.sequences, part * DELTA_ROWS, p.o.rows, warp);
        let at = part * DELTA_ROWS + warp.index() * 8 + warp.lane() / 4;
        let row = at.wrapping_sub(first);
        let [o, d_o] = [&p.o, &p.d_o]
            .map(|tensor| GlobalRows::<E, DV>::new(tensor, batch, head).part(own.first(), own.rows()));
        let [lse, d_lse] = [&p.lse, &p.d_lse]
            .map(|values| GlobalVec::new(values, batch, head, p.o.rows).part(own.first(), own.rows()));
        let lse = lse.load_row(row, f32::NEG_INFINITY, &warp);
        let d_lse = d_lse.load_row(row, 0.0, &warp);
        let sees_none = lse == f32::NEG_INFINITY;
        let minus_lse = if sees_none { lse } else { -lse * LOG2_E };
        let delta = o.dot_by_quads(&d_o, row, warp) - d_lse;
        HeadValues::new(&p.minus_lse, of_all).store_by_quads(at, minus_lse, warp);
        HeadValues::new(&p.delta, of_all).store_by_quads(at, if sees_none { 0.0 } else { delta }, warp);
    }
}
