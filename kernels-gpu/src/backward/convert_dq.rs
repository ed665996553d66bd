//! Rounds the sums of dQ that Hopper's kernel leaves.
use crate::backward::sequence::of_tile;
use crate::entries::Run;
use spec::{BwdConvertDq, BwdConvertDqParams, ConvertDqInfo, Line};
use tile::global::{GlobalRows, GlobalSums};
use tile::mma::Mma;
use tile::{Block, Smem};

impl<E: Mma, const W: usize, const SHARE: usize, const D: usize> Run for BwdConvertDq<E, W, SHARE, D> {
    /// The blocks begin with the last tiles, which are the likeliest to be in the L2 cache.
    #[inline(always)]
    fn run(p: BwdConvertDqParams, block: Block<Self>, _: Smem<Self>) {
        const {
            assert!(SHARE * W == D || 4 * W == D, "the warpgroups' columns must make up the head dim");
            assert!(Self::IS_TRANSPOSED || SHARE.is_multiple_of(2), "a quad stores four chunks");
        }
        let (of_all, tile) = p.tiles.div_rem(block.count() - 1 - block.index());
        let ((batch, head), warp) = (p.heads.div_rem(of_all), block.warp());
        let ConvertDqInfo { stage_rows: stage, block_rows: rows, .. } = Self::INFO;
        let (share, warp_of) = (warp.index() / 4, warp.index() % 4);
        let sums = GlobalSums::<W, SHARE>::new(&p.sums).tile(of_all, tile);
        // If offsets of varlen sequences descend, no block adds anything.
        let is_sum = p.cu_seqlens_q.offsets.count() == 0 || sums.is_begun(stage / rows, &warp);
        let (queries, first) = of_tile(&p.sequences, &p.cu_seqlens_q, [tile * rows, stage], p.dq.rows, warp);
        let row = (tile * rows).wrapping_sub(first.wrapping_mul(stage));
        if row >= queries.rows() || !is_sum {
            return;
        }
        let mut acc = sums.load(warp);
        acc.map(|x| x * p.scale);
        let dq = GlobalRows::<E, D>::new(&p.dq, batch, head).part(queries.first(), queries.rows());
        match Self::IS_TRANSPOSED {
            true => dq.store_transposed(&acc, [row, warp.index()], warp),
            false => dq.store_by_quads(&acc, [row + warp_of * 16, share * SHARE as u32], warp),
        }
    }
}
