//! The kernel that makes block masks.
use crate::{BlockMask, FastDiv, Integers, Kernel, MaskMarker, Plain, WithParams};
use core::marker::PhantomData;

/// A kernel that makes the lists of a [`BlockMask`] of mask `Mask`'s own function, for blocks of `TILE_M`
/// queries and `TILE_N` keys (FlexAttention's `create_block_mask`). A warp makes the lists of a tile.
pub struct CreateBlockMask<Mask, const TILE_M: u32, const TILE_N: u32>(PhantomData<Mask>);

/// Parameters of [`CreateBlockMask`]. The parameters of the mask follow them. The kernel clamps every number
/// in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateBlockMaskParams {
    /// The memory to fill: [`BlockMask::room`] has its size.
    pub lists: BlockMask,
    /// Number of heads with lists, and number of tiles per head.
    pub heads: FastDiv,
    /// Tiles of a head.
    pub m_blocks: FastDiv,
    /// Maximum number of queries per sequence, and maximum number of keys per sequence.
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
    /// Number of queries, and number of keys, of a block.
    const TILE: [u32; 2];
    /// Whether its mask reads the request's window.
    const READS_WINDOW: bool;
}
impl<Mask: MaskMarker, const TILE_M: u32, const TILE_N: u32> CreatesBlockMask
    for CreateBlockMask<Mask, TILE_M, TILE_N>
{
    type Variant = Mask::Params;
    const TILE: [u32; 2] = [TILE_M, TILE_N];
    const READS_WINDOW: bool = Mask::READS_WINDOW;
}
