//! Tiles of an element type as A operands, direct or transposed.
use crate::Warp;
use crate::mma::TensorCore;
use crate::shared::SharedTile;
use contract::{Bf16, E4m3, Element, F16, Native};
use cuda_std::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use cuda_std::math::{permute_bytes, unpack_e4m3};

/// An element type of shared tiles in products with few columns. Such a product may sum its k-steps in any
/// column order that both operands share: `right_word` defines the order of the B operand's words.
pub trait Stored: Element {
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

/// Implements eight-bit elements, which are multiplied as f16. `pairs` converts a word to two operands: of
/// bytes 0 and 1, and of bytes 2 and 3. `halves` converts a word to two operands: of bytes 0 and 2, and of
/// bytes 1 and 3.
macro_rules! eight_bits {
    ($e:ty, factor $factor:literal, pairs $pairs:expr, halves $halves:expr) => {
        impl Stored for $e {
            type As = F16;
            const FACTOR: f32 = $factor;
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
                    let [a, b, c, d] = unsafe { ldmatrix_x4(reader.tile(0, k)) }.map($pairs);
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
eight_bits!(Native<E4m3>, factor 1.0, pairs unpack_e4m3, halves |x| unpack_e4m3(permute_bytes(x, 0x3120)));
eight_bits!(E4m3, factor 256.0, pairs |x| shift_odd_even(permute_bytes(x, 0x3120)), halves shift_odd_even);

/// Converts bytes 0 and 2, and bytes 1 and 3, to f16 values that are scaled by 2^-8. The bits of an e4m3 are
/// shifted into an f16 unchanged, so only the bias of the exponent differs, also for subnormal numbers. NaN
/// becomes 480 * 2^-8.
#[inline(always)]
fn shift_odd_even(x: u32) -> [u32; 2] {
    let odd = (x & 0x8000_8000) | (x & 0x7f00_7f00) >> 1;
    let even = (x & 0x0080_0080) << 8 | (x & 0x007f_007f) << 7;
    [even, odd]
}

#[cfg(test)]
mod tests {
    use super::shift_odd_even;

    /// The value of the f16 that has these bits.
    fn f16(bits: u32) -> f64 {
        let (exponent, mantissa) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64);
        let magnitude = match exponent {
            0 => mantissa * 2f64.powi(-24),
            _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
        };
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn bits_are_shifted_to_their_number() {
        for bits in (0..256u32).filter(|bits| bits & 0x7f != 0x7f) {
            let (exponent, mantissa) = ((bits >> 3 & 15) as i32, (bits & 7) as f64);
            let magnitude = match exponent {
                0 => mantissa * 2f64.powi(-9),
                _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
            };
            let number = if bits & 0x80 == 0 { magnitude } else { -magnitude };
            for (byte, word, half) in [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)] {
                let shifted = shift_odd_even(bits << (8 * byte))[word] >> (16 * half) & 0xffff;
                assert_eq!(f16(shifted) * 256.0, number, "{bits:#x}, byte {byte}");
            }
        }
    }
}
