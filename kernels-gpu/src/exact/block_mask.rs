//! Block masks on the host, made of a kernel's own mask function.
use crate::rows::Sequence;
use crate::variant::MaskFn;
use crate::variant::block_kind::{Alone, BlockKind, kind_of};
use spec::{BlockMask, Integers};
use std::vec::Vec;

/// The lists of a [`BlockMask`], for device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLists {
    /// The integers of [`BlockMask::tiles`].
    pub tiles: Vec<u32>,
    /// The integers of [`BlockMask::blocks`].
    pub blocks: Vec<u32>,
    /// See [`BlockMask::shape`].
    pub shape: [u32; 4],
    /// See [`BlockMask::tile`].
    pub tile: [u32; 2],
}

/// The lists of a work tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLists<'a> {
    /// Numbers of full blocks, in rising order.
    pub full: &'a [u32],
    /// Numbers of partial blocks, in rising order.
    pub partial: &'a [u32],
}

impl BlockLists {
    /// Lists of this shape (see [`BlockMask::shape`]), for blocks of `tile` queries and keys. `kind` gets
    /// sequence, head, tile of queries and key block, and returns the block's kind. If the keys end in the
    /// block, `kind` must not return [`Full`](BlockKind::Full): such a block is empty or [`Partial`].
    ///
    /// [`Partial`]: BlockKind::Partial
    pub fn new(shape: [u32; 4], tile: [u32; 2], kind: impl Fn([u32; 4]) -> BlockKind) -> Self {
        let (mut tiles, mut blocks) = (Vec::new(), Vec::new());
        let [sequences, heads, m_blocks, n_blocks] = shape;
        for index in 0..sequences * heads * m_blocks {
            let [head, m_block] = [index / m_blocks, index % m_blocks];
            let kinds: Vec<_> =
                (0..n_blocks).map(|n| kind([head / heads, head % heads, m_block, n])).collect();
            for of in [BlockKind::Full, BlockKind::Partial] {
                let first = blocks.len();
                blocks.extend((0..n_blocks).filter(|n| kinds[*n as usize] == of));
                tiles.extend([first as u32, (blocks.len() - first) as u32]);
            }
        }
        BlockLists { tiles, blocks, shape, tile }
    }

    /// The parameters of a kernel that finds `tiles` and `blocks` at these device addresses.
    pub fn at(&self, tiles: u64, blocks: u64) -> BlockMask {
        let integers = |base, numbers: &[u32]| Integers { base, count: numbers.len() as u32, reserved: 0 };
        BlockMask {
            tiles: integers(tiles, &self.tiles),
            blocks: integers(blocks, &self.blocks),
            shape: self.shape,
            tile: self.tile,
        }
    }

    /// The lists of each tile, `[sequence][head][tile]`. The kernel's lists may contain any numbers. If a
    /// list does not lie in `blocks`, it counts as empty.
    pub fn lists(&self) -> impl Iterator<Item = TileLists<'_>> {
        self.tiles.chunks_exact(BlockMask::PER_TILE as usize).map(|of| {
            let part = |first: u32, count: u32| {
                let first = first as usize;
                self.blocks.get(first..first.saturating_add(count as usize)).unwrap_or_default()
            };
            TileLists { full: part(of[0], of[1]), partial: part(of[2], of[3]) }
        })
    }

    /// Number of full and of partial blocks of all tiles.
    pub fn counts(&self) -> [usize; 2] {
        let add = |[full, partial]: [usize; 2], of: TileLists<'_>| {
            [full + of.full.len(), partial + of.partial.len()]
        };
        self.lists().fold([0; 2], add)
    }
}

/// The block lists of mask `M` (FlexAttention's `create_block_mask`) for kernels whose tiles have `tile`
/// queries and keys (`tile_m`, `tile_n`). For most blocks, the intervals and the corners of the block
/// determine the result. The function asks for each pair of a block only if the mask may have holes there.
///
/// `sequences` are the sequences with lists: all sequences of a batch, or one sequence whose lists all
/// sequences share ([`super::sequence`]). `heads` is 1 if all heads share their lists.
///
/// A mask that reads the request's window does not compile here, because this function knows no window.
///
/// # Panics
/// If a tile has no query or key, or if the lists may have 2^31 integers or more.
pub fn create_block_mask<M: MaskFn>(
    params: &M::Params,
    sequences: &[Sequence],
    heads: u32,
    tile: [u32; 2],
) -> BlockLists {
    const {
        assert!(
            !M::READS_WINDOW,
            "the mask reads the request's window: make its lists with a kernel (`CreateBlockMask`), or with \
             `BlockLists::new`"
        )
    }
    let longest = |of: fn(&Sequence) -> i32| sequences.iter().map(of).max().unwrap_or(0).max(0) as u32;
    let [m_blocks, n_blocks] =
        [longest(|of| of.queries).div_ceil(tile[0]), longest(|of| of.keys).div_ceil(tile[1])];
    let shape = [sequences.len() as u32, heads, m_blocks, n_blocks];
    assert!(BlockMask::room(shape).is_some(), "{shape:?}: a block mask has less than 2^31 integers");
    BlockLists::new(shape, tile, |[sequence, head, m_block, n]| {
        let of = sequences[sequence as usize].with_head(head);
        let Some(of) = of.with_tile(m_block, tile[0]) else { return BlockKind::Empty };
        kind_of(&M::keys(params, &of), &of, [n, tile[1]], Alone)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{sequence, with_memory};
    use crate::variant::mask::MaskMod;
    use core::ops::Range;
    use cuda_std::host::Copied;
    use spec::{
        Bits, BitsParams, Causal, Chunked, ChunkedParams, FastDiv, Full, MaskMarker, Prefix, PrefixParams,
    };
    use std::vec;

    /// Every third key of a window, and keys 40..90 of it without holes.
    #[derive(Clone, Copy)]
    struct Comb;
    impl MaskMarker for Comb {
        type Params = ();
    }
    impl MaskMod for Comb {
        fn load(_: &(), _: &Sequence) -> Self {
            Comb
        }
        fn keys(&self, p: i32) -> Range<i32> {
            p - 100..p + 20
        }
        fn whole(&self) -> Range<i32> {
            40..90
        }
        fn sees(&self, p: i32, k: i32) -> bool {
            (40..90).contains(&k) || k % 3 == 0 && p / 50 != k / 50
        }
    }

    /// Compares the lists with each pair of a block.
    fn check<M: MaskMod>(params: &M::Params, of: Sequence, tile: [u32; 2]) {
        let lists = create_block_mask::<M>(params, &[of], 2, tile);
        let name = core::any::type_name::<M>();
        let [_, heads, m_blocks, n_blocks] = lists.shape;
        for (index, listed) in lists.lists().enumerate() {
            let (head, m_block) = (index as u32 / m_blocks, index as u32 % m_blocks);
            assert!(head < heads);
            let of = of.with_head(head);
            let mask = M::load(params, &of);
            let sees = |query: i32, k: i32| {
                let (p, Range { start, end }) = (query + of.shift, mask.keys(query + of.shift));
                (start..end.min(of.keys)).contains(&k) && mask.sees(p, k)
            };
            for n in 0..n_blocks {
                let range = |i: u32, of: u32| (i * of) as i32..((i + 1) * of) as i32;
                let queries = || range(m_block, tile[0]).take_while(|query| *query < of.queries);
                let pairs = || queries().flat_map(|query| range(n, tile[1]).map(move |k| (query, k)));
                let all = pairs().all(|(query, k)| sees(query, k));
                let any = pairs().any(|(query, k)| sees(query, k));
                let is = [listed.full.contains(&n), listed.partial.contains(&n)];
                assert_eq!(is, [all, any && !all], "{name}: {tile:?}, {of:?}, block {n}");
            }
        }
    }

    #[test]
    fn lists_are_those_of_each_pair() {
        let address = 1 << 20;
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Rows of ones, of zeros, and of both.
            [0, 255, (state >> 24) as u8][(state >> 20) as usize % 3]
        };
        let bytes: Vec<u8> = (0..2 * 90 * 20).map(|_| next()).collect();
        let bits = BitsParams {
            base: address,
            batch_bytes: 0,
            head_bytes: 90 * 20,
            row_bytes: 20,
            rows: 90,
            keys: 157,
            reserved: 0,
        };
        with_memory(vec![Copied { address, bytes }], || {
            for lengths in [[1, 1], [90, 157], [33, 200], [90, 60], [7, 300]] {
                for tile in [[16, 16], [64, 32], [128, 48], [32, 64]] {
                    let of = sequence(0, 0, lengths, 1.0);
                    check::<Full>(&(), of, tile);
                    check::<Causal>(&(), of, tile);
                    check::<Comb>(&(), of, tile);
                    check::<Bits>(&bits, of, tile);
                    for keys in [1, 17, 64, 1000] {
                        let chunk = FastDiv::new(keys).expect("a divisor");
                        check::<Chunked>(&ChunkedParams { chunk, reserved: 0 }, of, tile);
                        let lengths = Integers { base: 0, count: 0, reserved: 0 };
                        check::<Prefix>(&PrefixParams { lengths, all: keys, reserved: 0 }, of, tile);
                    }
                }
            }
        });
    }
}
