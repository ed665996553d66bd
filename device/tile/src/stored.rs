//! How tiles of an element type become left operands, as they are or transposed.
use crate::mma::TensorCore;
use crate::{SharedTile, Warp};
use contract::{Bf16, Element, F16};
use cuda_std::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};

/// What tiles in shared memory may hold whose products have few columns. A product does not care in which
/// order its k-steps count columns, as long as both sides agree: `right_word` says where the other side's
/// words lie.
pub trait Stored: Element {
    /// What is multiplied.
    type As: TensorCore;
    /// Whether rows `i` and `i + 8` of a row tile of [`Stored::columns`] are columns `2i` and `2i + 1` of the
    /// tile, rather than `i` and `i + 8`.
    const PAIRED: bool;
    /// Which word (two elements of `As`) of a row of the right operand's transpose is word `i` of k-step `k`
    /// in lane 0 of four, and how many words further each next lane's is.
    fn right_word(k: usize, i: usize) -> [u32; 2];
    /// `f(k-step, A operand)`: the tile.
    fn rows<const K: usize>(tile: &SharedTile<Self, 1, K>, warp: Warp, f: impl FnMut(usize, [u32; 4]));
    /// `f(row tile, A operand)`: its transpose.
    fn columns<const R: usize>(tile: &SharedTile<Self, 1, R>, warp: Warp, f: impl FnMut(usize, [u32; 4]));
}

macro_rules! as_they_are {
    ($($e:ident),*) => { $(impl Stored for $e {
        type As = $e;
        const PAIRED: bool = false;
        #[inline(always)]
        fn right_word(k: usize, i: usize) -> [u32; 2] {
            [(k * 8 + i * 4) as u32, 1]
        }
        #[inline(always)]
        fn rows<const K: usize>(
            tile: &SharedTile<Self, 1, K>,
            warp: Warp,
            mut f: impl FnMut(usize, [u32; 4]),
        ) {
            let reader = tile.columns_first(0, warp);
            for k in 0..K {
                // SAFETY: `reader` addresses rows of a readable tile, and `Warp` stands for 32 converged
                // lanes.
                f(k, unsafe { ldmatrix_x4(reader.tile(0, k)) })
            }
        }
        #[inline(always)]
        fn columns<const R: usize>(
            tile: &SharedTile<Self, 1, R>,
            warp: Warp,
            mut f: impl FnMut(usize, [u32; 4]),
        ) {
            let reader = tile.rows_first(warp);
            for r in 0..R {
                // SAFETY: as above.
                f(r, unsafe { ldmatrix_x4_trans(reader.tile(0, r)) })
            }
        }
    })* };
}
as_they_are!(F16, Bf16);
