//! Tiles of an element type as A operands, direct or transposed.
use crate::Warp;
use crate::mma::TensorCore;
use crate::shared::convert::{integers_odd_even, shift_odd_even};
use crate::shared::{ConvertTo, Scaled, SharedTile};
use contract::{Bf16, E4m3, F16, Int8, Native};
use cuda_std::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use cuda_std::math::{permute_bytes, unpack_e4m3};

/// An element type of shared tiles in products with few columns. Such a product may sum its k-steps in any
/// column order that both operands share: `right_word` defines the order of the B operand's words.
pub trait Stored: Scaled {
    /// The element type that tensor cores multiply.
    type As: TensorCore;
    /// The value of a stored element, divided by the value that its operand has. The factor is 1, unless the
    /// conversion only shifts bits.
    const FACTOR: f32;
    /// Whether rows `i` and `i + 8` of a row tile of [`Stored::columns`] are columns `2i` and `2i + 1` of the
    /// tile. If this constant is false, these rows are columns `i` and `i + 8`.
    const PAIRED: bool;
    /// The words that four lanes hold as word `i` of k-step `k`: the word of lane 0, and the distance from
    /// one lane's word to the next lane's word. Words of two elements of `As` are counted in a row of the
    /// transposed B operand.
    fn right_word(k: usize, i: usize) -> [u32; 2];
    /// Calls `f(k-step, A operand)` for the tile's 16 rows from row `first` on, which is a multiple of 16.
    fn rows<const N: usize, const K: usize>(
        tile: &SharedTile<Self, N, K>,
        first: u32,
        warp: Warp,
        f: impl FnMut(usize, [u32; 4]),
    );
    /// Calls `f(row tile, A operand)` for the transpose of row tile `n` of the tile.
    fn columns<const N: usize, const R: usize>(
        tile: &SharedTile<Self, N, R>,
        n: usize,
        warp: Warp,
        f: impl FnMut(usize, [u32; 4]),
    );
}

macro_rules! as_they_are {
    ($($e:ident),*) => { $(impl Stored for $e {
        type As = $e;
        const FACTOR: f32 = 1.0;
        const PAIRED: bool = false;
        #[inline(always)]
        fn right_word(k: usize, i: usize) -> [u32; 2] {
            [(k * 8 + i * 4) as u32, 1]
        }
        #[inline(always)]
        fn rows<const N: usize, const K: usize>(
            tile: &SharedTile<Self, N, K>,
            first: u32,
            warp: Warp,
            mut f: impl FnMut(usize, [u32; 4]),
        ) {
            let reader = tile.columns_first(first, warp);
            for k in 0..K {
                // SAFETY: `reader` addresses rows of a readable tile, and `Warp` stands for 32 converged
                // lanes.
                f(k, unsafe { ldmatrix_x4(reader.tile(0, k)) })
            }
        }
        #[inline(always)]
        fn columns<const N: usize, const R: usize>(
            tile: &SharedTile<Self, N, R>,
            n: usize,
            warp: Warp,
            mut f: impl FnMut(usize, [u32; 4]),
        ) {
            let reader = tile.rows_first(warp);
            for r in 0..R {
                // SAFETY: the reason above holds here too.
                f(r, unsafe { ldmatrix_x4_trans(reader.tile(n, r)) })
            }
        }
    })* };
}
as_they_are!(F16, Bf16);

/// Implements eight-bit elements, which are multiplied as f16. `halves` converts a word to two operands: of
/// bytes 0 and 2, and of bytes 1 and 3.
macro_rules! eight_bits {
    ($e:ty, halves $halves:expr) => {
        impl Stored for $e {
            type As = F16;
            const FACTOR: f32 = <$e as ConvertTo<F16>>::FACTOR;
            const PAIRED: bool = true;
            // `ldmatrix` gives four adjacent columns to lane `t`. These columns serve as columns `2t`,
            // `2t + 1`, `2t + 8` and `2t + 9` of a k-step.
            #[inline(always)]
            fn right_word(k: usize, i: usize) -> [u32; 2] {
                [(k * 8 + i) as u32, 2]
            }
            #[inline(always)]
            fn rows<const N: usize, const K: usize>(
                tile: &SharedTile<Self, N, K>,
                first: u32,
                warp: Warp,
                mut f: impl FnMut(usize, [u32; 4]),
            ) {
                let reader = tile.columns_first(first, warp);
                for k in 0..K / 2 {
                    // SAFETY: the reason above holds here too.
                    let words = unsafe { ldmatrix_x4(reader.tile(0, k)) };
                    let [a, b, c, d] = words.map(<$e as ConvertTo<F16>>::convert);
                    f(2 * k, [a[0], b[0], a[1], b[1]]);
                    f(2 * k + 1, [c[0], d[0], c[1], d[1]]);
                }
            }
            // `ldmatrix` transposes units of two columns, so a word holds columns `2i` and `2i + 1` of two
            // rows. `halves` sorts the word by column, which gives two rows of the operand.
            #[inline(always)]
            fn columns<const N: usize, const R: usize>(
                tile: &SharedTile<Self, N, R>,
                n: usize,
                warp: Warp,
                mut f: impl FnMut(usize, [u32; 4]),
            ) {
                let reader = tile.columns_first(0, warp);
                for r in 0..R / 2 {
                    // SAFETY: the reason above holds here too.
                    let [a, b, c, d] = unsafe { ldmatrix_x4_trans(reader.tile(n, r)) }.map($halves);
                    f(2 * r, [a[0], a[1], b[0], b[1]]);
                    f(2 * r + 1, [c[0], c[1], d[0], d[1]]);
                }
            }
        }
    };
}
eight_bits!(Native<E4m3>, halves | x | unpack_e4m3(permute_bytes(x, 0x3120)));
eight_bits!(E4m3, halves shift_odd_even);
eight_bits!(Int8, halves integers_odd_even);
