//! Makes block masks on the device. For each tile of queries, a warp uses the mask's function to sort the key
//! blocks into full, partial and empty ones. It writes a list of the full blocks and a list of the partial
//! blocks.
use crate::entries::Run;
use crate::lengths::{self, Span};
use crate::rows::Sequence;
use crate::variant::MaskFn;
use crate::variant::block_kind::{BlockKind, kind_of};
use attention_tile::head_of;
use core::f32::consts::LOG2_E;
use spec::{BlockMask, CreateBlockMask, CreateBlockMaskParams, Integers, Kernel};
use tile::global::FillInts;
use tile::{Block, Smem, Warp};

/// Rows of sequence `index`: at most `longest`.
#[inline(always)]
fn rows(cu_seqlens: &Integers, index: u32, longest: u32) -> u32 {
    match cu_seqlens.count() {
        0 => longest,
        _ => Span::load(cu_seqlens, index, u32::MAX >> 1).rows().min(longest),
    }
}

/// The sequence and head of the lists, without a tile.
#[inline(always)]
fn sequence(p: &CreateBlockMaskParams, [index, head]: [u32; 2], warp: Warp) -> Sequence {
    let queries = rows(&p.cu_seqlens_q, index, p.longest[0]);
    let keys = rows(&p.cu_seqlens_k, index, p.longest[1]);
    let keys = match p.seqused_k.count() {
        0 => keys,
        _ => lengths::length(&p.seqused_k, index, keys),
    };
    let [queries, keys] = [queries as i32, keys as i32];
    let shift = (keys - queries) * p.bottom_right as i32;
    let tile = [0, queries - 1];
    let (window, at) = (p.window, head_of(index, head, &warp));
    Sequence { index, head, queries, keys, shift, window, tile, scale_log2: LOG2_E, at }
}

impl<Mask: MaskFn, const TILE_M: u32, const TILE_N: u32> Run for CreateBlockMask<Mask, TILE_M, TILE_N> {
    #[inline(always)]
    fn run(params: <Self as Kernel>::Params, block: Block<Self>, _: Smem<Self>) {
        let (p, warp, index) = (&params.kernel, block.warp(), block.index());
        let (head, m_block) = p.m_blocks.div_rem(index);
        let (number, head) = p.heads.div_rem(head);
        let of = sequence(p, [number, head], warp);
        let n_blocks = p.lists.shape[3];

        // The tile's part of `blocks`: room for all full blocks, and behind it room for all partial blocks.
        let (is_mine, blocks) = (warp.lane() == 0, FillInts::new(&p.lists.blocks, &warp));
        let full0 = index.wrapping_mul(2).wrapping_mul(n_blocks);
        let (mut full, mut partial) = (full0, full0.wrapping_add(n_blocks));
        let partial0 = partial;
        if let Some(of) = of.with_tile(m_block, TILE_M) {
            let mask = Mask::keys(&params.variant, &of);
            for n in 0..(of.keys as u32).div_ceil(TILE_N).min(n_blocks) {
                let kind = kind_of(&mask, &of, [n, TILE_N], warp);
                let to = if kind == BlockKind::Full { full } else { partial };
                blocks.store(to, n, is_mine && kind != BlockKind::Empty);
                full += (kind == BlockKind::Full) as u32;
                partial += (kind == BlockKind::Partial) as u32;
            }
        }
        let (tiles, at) = (FillInts::new(&p.lists.tiles, &warp), index.wrapping_mul(BlockMask::PER_TILE));
        for (i, x) in [full0, full - full0, partial0, partial - partial0].into_iter().enumerate() {
            tiles.store(at.wrapping_add(i as u32), x, is_mine);
        }
    }
}
