//! The gradient of a bias: of each element, the sum of the gradients of the scores that read it. A block has
//! a tile of the bias, and takes the sequences and heads that share it one after another, so the order of all
//! additions is fixed. The bias is added to scaled scores, whose gradient is dS = P (dP - delta).
use crate::backward::pair::{PairRing, QueryBlock};
use crate::backward::sequence::TileSequence;
use crate::entries::Portable;
use crate::rows::Sequence;
use crate::variant::blocks::BlockRange;
use crate::variant::{MaskFn, Scores};
use attention_tile::{head_of, store_bias};
use cuda_std::math::{pack_bf16, pack_f16};
use spec::{Bias, BiasTiles, BwdDbias, BwdDbiasParams, DType, Kernel, WorkTile};
use tile::mma::{Acc, Mma};
use tile::{Block, Smem};

impl<E: Mma, Mask: MaskFn, const M: usize, const W: usize, const N: usize, const D: usize, const DV: usize>
    Portable for BwdDbias<E, Mask, M, W, N, D, DV>
{
    #[inline(always)]
    fn body<C: Kernel>(p: &BwdDbiasParams, variant: &Mask::Params, mut block: Block<C>, smem: Smem<C>) {
        const {
            assert!(!Mask::LISTED, "backward kernels take ranges of keys, no lists of key blocks");
            assert!(Mask::SCORES.bias.is_some(), "this mask has no `Bias`");
            assert!(Mask::Scores::ADDITIVE, "a score behind the bias may change its derivative");
        }
        let (BwdDbiasParams { problem: p, dbias, tiles }, block) = (p, &mut block);
        let BiasTiles { n_blocks, m_blocks, heads, shared_heads, shares, .. } = tiles;
        let (row_of_tiles, n) = n_blocks.div_rem(block.index());
        let (of_bias, m_block) = m_blocks.div_rem(row_of_tiles);
        let (first_sequence, first_head) = heads.div_rem(of_bias);
        let [tile_m, tile_n] = [M, N].map(|n| n as u32 * 16);
        let ring: PairRing<C, E, M, N, D, DV, 1> = smem.split();
        let mut stages = ring.start(|_, _| {});
        let mut sum = Acc::<W, N>::zero();
        for share in 0..*shares {
            let (sequence, head) = shared_heads.div_rem(share);
            let (index, head) = (first_sequence + sequence, first_head + head);
            let batch = if p.sequences.cu_seqlens_q.offsets.count() == 0 { index } else { 0 };
            let (kv_head, _) = p.order.heads_per_kv.div_rem(head);
            let own = TileSequence::of(p, WorkTile { m_block, batch, head, kv_head }, index);
            if m_block * tile_m >= own.queries.rows() {
                continue;
            }
            let of = QueryBlock { p, own, tile_m };
            let rows = of.rows();
            let sequence = Sequence::of(p, &rows, 0, block);
            let mask = Mask::keys(variant, &sequence);
            let range = BlockRange::of(mask, &rows, tile_n);
            if n < range.start || n >= range.end {
                continue; // no query of the tile sees one of its keys
            }
            let pair = stages.advance(block, |slot, block| of.copy(n, slot, block));
            let scores = Mask::scores(p, variant, &sequence);
            let (mine, _) = block.split_groups::<M, W, 1>();
            let [_, ds] = of.gradients::<Mask, E, M, W, N, D, DV>((mask, scores), n, &pair, mine);
            sum.zip(&ds, |sum, ds| sum + ds);
        }

        // Epilogue. Rows and keys that no sequence has are 0.
        let (mine, _) = block.split_groups::<M, W, 1>();
        let per_word = if const { matches!(Mask::SCORES.bias, Some(DType::F32)) } { 1 } else { 2 };
        let to = Bias::<()>::of(dbias, head_of(first_sequence, first_head, block), 0, per_word);
        let first = [m_block * tile_m + mine.first(), n * tile_n];
        sum.each_pair_at(first, mine.warp(), |[lo, hi], row, key| match const { Mask::SCORES.bias } {
            Some(DType::F16) => store_bias(&to, [row, key], per_word, pack_f16(lo, hi), block),
            Some(DType::Bf16) => store_bias(&to, [row, key], per_word, pack_bf16(lo, hi), block),
            _ => {
                store_bias(&to, [row, key], per_word, lo.to_bits(), block);
                store_bias(&to, [row, key + 1], per_word, hi.to_bits(), block);
            }
        });
    }
}
