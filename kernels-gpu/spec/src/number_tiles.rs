//! The kernel that numbers the query tiles of a mixed batch.
use crate::*;

/// Numbers the query tiles of a mixed batch's sequences of many queries, without gaps, because only the
/// device knows which sequences have many (FlashAttention-3 has a kernel before varlen batches, too:
/// `prepare_varlen_num_blocks`). A warp writes the numbers of 32 sequences.
pub struct NumberTiles;

/// Parameters of [`NumberTiles`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberTilesParams {
    /// See [`VarlenParams::cu_seqlens_q`].
    pub cu_seqlens_q: Integers,
    /// The integers that the kernel writes, one more than there are sequences: number `b` is the number of
    /// tiles of all sequences before sequence `b`. The last number counts all tiles of a head.
    pub begins: Integers,
    /// Number of rows of Q.
    pub rows: u32,
    /// Sequences of at most this number of queries have no tile: [`FewParams::most`].
    pub few: u32,
    /// Number of queries per tile.
    pub tile_m: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! { NumberTilesParams { cu_seqlens_q, begins, rows, few, tile_m, reserved } }

impl NumberTiles {
    /// Number of sequences of a warp.
    pub const SEQUENCES: u32 = 32;

    /// The search for the sequence of a tile among `count` sequences with `rows` rows in all, and the most
    /// tiles of `tile_m` rows that a head's sequences of more than `few` queries have. Returns `None` if a
    /// number is 0, or if there are 2^30 sequences or 2^31 tiles.
    pub fn most(count: u32, rows: u32, tile_m: u32, few: u32) -> Option<(Sequences, u32)> {
        let (of_all, _) = Sequences::by_rows(count, rows, tile_m).filter(|_| rows > 0)?;
        // A sequence has a tile that is not full at most.
        Some((of_all, (rows / tile_m + (rows / few.checked_add(1)?).min(count)).max(1)))
    }
}

impl Kernel for NumberTiles {
    type Params = NumberTilesParams;
    const THREADS: u32 = 32;
    const SMEM_BYTES: usize = 0;
    fn grid(params: &NumberTilesParams) -> [u32; 3] {
        [params.begins.count().div_ceil(Self::SEQUENCES), 1, 1]
    }
}

impl Line for NumberTiles {
    type Info = ExtraInfo;
    const INFO: ExtraInfo =
        ExtraInfo { contract: Contract::of::<Self>(""), what: "numbers the query tiles of a mixed batch" };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_has_more_tiles() {
        for (tile_m, few) in [(32, 1), (64, 4), (128, 4), (128, 16), (128, 129)] {
            let sets: [&[u32]; 6] = [
                &[1],
                &[0, 700],
                &[1, 0, 4, 5, 700, 6],
                &[few + 1, few],
                &[128, 127, 1, 1, 1, 129],
                &[64, 5, 0, 0, 65],
            ];
            for (set, count) in sets.into_iter().flat_map(|set| [1, 2, 31, 65].map(|count| (set, count))) {
                let lengths = || set.iter().copied().cycle().take(count);
                let tiles: u32 = lengths().filter(|n| *n > few).map(|n| n.div_ceil(tile_m)).sum();
                let most = NumberTiles::most(count as u32, lengths().sum::<u32>().max(1), tile_m, few);
                let (_, most) = most.expect("valid");
                assert!(tiles <= most, "{count} of {set:?}, tiles of {tile_m}, {few}: {tiles}, {most}");
            }
        }
        let most = |count, rows| NumberTiles::most(count, rows, 128, 4).map(|(_, tiles)| tiles);
        assert_eq!(most(256, 256), Some(2 + 51));
        assert_eq!(most(256, 1), Some(1));
        assert_eq!(most(8, 8 * 2048), Some(8 * 16 + 8));
        assert_eq!(most(0, 1), None);
    }
}
