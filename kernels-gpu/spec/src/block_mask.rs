//! Block masks: lists of the key blocks that each work tile takes. FlexAttention's `BlockMask` (Dong et al.,
//! 2024).
use crate::{And, FastDiv, Integers, Kernel, MaskKind, MaskMarker, Plain, ScoreKinds, WithParams};
use core::marker::PhantomData;

/// Mask `Mask`, with a [`BlockMask`] that lists the key blocks of each work tile. A kernel takes listed blocks
/// only. It asks `Mask` about the pairs of *partial* blocks, and about no pair of *full* blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockSparse<Mask>(PhantomData<Mask>);

impl<Mask: MaskMarker> MaskMarker for BlockSparse<Mask> {
    const KIND: MaskKind = Mask::KIND;
    const SCORES: ScoreKinds = Mask::SCORES;
    const LISTED: bool = {
        assert!(!Mask::LISTED, "a block mask has a block mask already: one is supported");
        true
    };
    type Params = And<Mask::Params, BlockMask>;
    fn block_mask(params: &Self::Params) -> Option<&BlockMask> {
        Some(&params.b)
    }
}

/// Parameters of [`BlockSparse`]: lists in device memory. The caller promises addresses and counts. Kernels
/// clamp every number that they read from there.
///
/// A tile of queries has two lists of block numbers: full blocks and partial blocks, in any order. The block
/// that the end of the keys cuts is always partial, and the last one of its list. Lists may lie anywhere in
/// `blocks`, with gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMask {
    /// Four integers per tile, `[sequence][head][tile]`: the index in `blocks` where the tile's full blocks
    /// begin, their number, the index where its partial blocks begin, their number.
    pub tiles: Integers,
    /// Block numbers: block `n` has keys `n * tile[1]..(n + 1) * tile[1]` of the sequence.
    pub blocks: Integers,
    /// Sequences (1 if all sequences share their lists), query heads (1 if all heads share their lists),
    /// tiles of queries per sequence and head, key blocks per sequence. Shorter sequences leave tiles and
    /// blocks unused.
    pub shape: [u32; 4],
    /// Queries and keys of a block: `tile_m` and `tile_n` of the kernel.
    pub tile: [u32; 2],
}
contract::no_padding! {
    BlockMask { tiles, blocks, shape, tile }
}

impl BlockMask {
    /// Integers per tile in [`BlockMask::tiles`].
    pub const PER_TILE: u32 = 4;

    /// The numbers of integers in [`BlockMask::tiles`] and [`BlockMask::blocks`] that have room for every list
    /// of a [`BlockMask::shape`]. `None` if one of them is 2^31 or more.
    pub fn room([sequences, heads, tiles, blocks]: [u32; 4]) -> Option<[u32; 2]> {
        let count = sequences.checked_mul(heads)?.checked_mul(tiles)?;
        let room = [count.checked_mul(Self::PER_TILE)?, count.checked_mul(blocks)?.checked_mul(2)?];
        room.iter().all(|integers| *integers < 1 << 31).then_some(room)
    }

    /// The index of a tile of queries in lists of this shape. Sequences, heads and tiles that do not exist
    /// have the lists of the last ones.
    #[inline(always)]
    pub fn tile_index(&self, sequence: u32, head: u32, tile: u32) -> u32 {
        let [sequences, heads, tiles, _] = self.shape;
        let nearest = |i: u32, count: u32| i.min(count.wrapping_sub(1));
        let head = nearest(sequence, sequences).wrapping_mul(heads).wrapping_add(nearest(head, heads));
        head.wrapping_mul(tiles).wrapping_add(nearest(tile, tiles))
    }
}

/// A kernel that makes the lists of a [`BlockMask`] of mask `Mask`'s own function, for blocks of `TILE_M`
/// queries and `TILE_N` keys (FlexAttention's `create_block_mask`). A warp makes the lists of a tile.
pub struct CreateBlockMask<Mask, const TILE_M: u32, const TILE_N: u32>(PhantomData<Mask>);

/// Parameters of [`CreateBlockMask`] before the mask's own. The kernel clamps every number in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateBlockMaskParams {
    /// The memory to fill: [`BlockMask::room`] has its size.
    pub lists: BlockMask,
    /// Heads of the lists, and tiles of a head.
    pub heads: FastDiv,
    /// Tiles of a head.
    pub m_blocks: FastDiv,
    /// The largest number of queries and of keys of a sequence.
    pub longest: [u32; 2],
    /// Offsets of the sequences in Q; none if each sequence has the largest number of queries.
    pub cu_seqlens_q: Integers,
    /// Offsets of the sequences in K; none if each sequence has the largest number of keys.
    pub cu_seqlens_k: Integers,
    /// Valid keys per sequence, also on a KV cache; none if all keys are valid.
    pub seqused_k: Integers,
    /// The window's keys before and behind a query's position, for masks that read it.
    pub window: [i32; 2],
    /// 1 for bottom-right alignment, 0 for top-left.
    pub bottom_right: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    CreateBlockMaskParams {
        lists, heads, m_blocks, longest, cu_seqlens_q, cu_seqlens_k, seqused_k, window, bottom_right, reserved
    }
}

impl<Mask: MaskMarker, const TILE_M: u32, const TILE_N: u32> Kernel
    for CreateBlockMask<Mask, TILE_M, TILE_N>
{
    type Params = WithParams<CreateBlockMaskParams, Mask::Params>;
    const THREADS: u32 = {
        let () = Self::Params::NO_PADDING;
        assert!(!Mask::LISTED, "the lists follow from a mask without lists: leave out `BlockSparse`");
        assert!(TILE_M > 0 && TILE_N > 0, "a block has queries and keys");
        32
    };
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 16;
    fn grid(params: &Self::Params) -> [u32; 3] {
        let [sequences, heads, m_blocks, _] = params.kernel.lists.shape;
        [sequences * heads * m_blocks, 1, 1]
    }
}

/// A kernel that makes block masks, as a type.
pub trait CreatesBlockMask: Kernel<Params = WithParams<CreateBlockMaskParams, Self::Variant>> {
    /// Parameters of its mask.
    type Variant: Plain;
    /// Queries and keys of a block.
    const TILE: [u32; 2];
}
impl<Mask: MaskMarker, const TILE_M: u32, const TILE_N: u32> CreatesBlockMask
    for CreateBlockMask<Mask, TILE_M, TILE_N>
{
    type Variant = Mask::Params;
    const TILE: [u32; 2] = [TILE_M, TILE_N];
}
