//! Rounds rows of 16 bits to rows of e4m3, and to transposed blocks of e4m3, with one scale per head.
use crate::Warp;
use crate::global::byte_image::{LARGEST, PARTS, SMALLEST, TOGETHER, four, place, words};
use crate::global::{ColumnMeans, GlobalRows, GlobalVec};
use crate::mma::Unpack;
use contract::E4m3;
use cuda_std::math::{fma, pack_e4m3_x4, permute_bytes_of, stay_a_loop};
use cuda_std::memory::st_global_b32_if;

/// Number of shares of a head whose largest magnitudes are measured apart.
pub const SHARES: u32 = 128;

/// The scale of a head's numbers, and its inverse: the largest magnitude becomes the largest e4m3. A head
/// with an infinity or a NaN has the scale NaN.
#[derive(Clone, Copy)]
pub struct Fp8Scale {
    scale: f32,
    inverse: f32,
}

impl Fp8Scale {
    /// The scale for the largest of the magnitudes of all shares.
    #[inline(always)]
    pub fn of(maxima: &GlobalVec, warp: Warp) -> Self {
        let mut largest = 0;
        for i in 0..SHARES / 32 {
            largest = largest.max(maxima.load_row(i * 32 + warp.lane, 0.0, &warp).to_bits());
        }
        let most = f32::from_bits(warp.largest(largest));
        let (scale, inverse) = match most {
            most if most < SMALLEST => (0.0, 0.0),
            most if most < f32::INFINITY => (most / LARGEST, LARGEST / most),
            _ => (f32::NAN, 0.0),
        };
        Fp8Scale { scale, inverse }
    }

    /// The scale.
    #[inline(always)]
    pub fn scale(self) -> f32 {
        self.scale
    }
}

/// The columns of a part of row `row` of a tensor of `rows` rows, less the means.
#[inline(always)]
fn less<E: Unpack>(words: [u32; 2], means: [f32; 4], row: u32, rows: u32) -> [f32; 4] {
    let x = four::<E>(words);
    core::array::from_fn(|i| if row < rows { x[i] - means[i] } else { 0.0 })
}

/// [`words`], or, `in_order`, the words of four columns of each part that are neighbours.
#[inline(always)]
fn words_of<E: Unpack, const D: usize>(
    from: &GlobalRows<E, D>,
    row: u32,
    in_order: bool,
    warp: Warp,
) -> [[u32; 2]; PARTS] {
    let ((tile, _), own) = (place::<D>(warp), warp.lane % 4);
    let mut words = [[0; 2]; PARTS];
    for part in 0..D.div_ceil(8) {
        let first = 2 * (tile + 8 * part as u32);
        words[part] = [0, 1].map(|i| {
            let (chunk, word) = if in_order { (own / 2, own % 2 * 2 + i) } else { (i, own) };
            from.predicated_word(row, first + chunk, word)
        });
    }
    words
}

/// Number of rows that the lanes of a warp have together, with one word of each.
const fn rows_together(d: usize) -> u32 {
    8_u32.div_ceil(d as u32)
}

/// Number of rows that [`GlobalRows::round_rows`] rounds.
pub const fn rows_at_once(d: usize) -> u32 {
    TOGETHER as u32 * rows_together(d)
}

/// The bits of the largest magnitude in share `share` of a head's rows, less the means.
#[inline(always)]
pub fn largest_of_share<E: Unpack, const D: usize>(
    from: &GlobalRows<E, D>,
    share: u32,
    means: &ColumnMeans,
    warp: Warp,
) -> u32 {
    let (each, (_, own)) = (from.rows().div_ceil(SHARES), place::<D>(warp));
    let (mut i, mut largest) = (0, 0);
    while i < each {
        stay_a_loop();
        // The loads of all rows are in flight together. The last of them may belong to the next share, whose
        // largest magnitude counts, too.
        let row = |n: usize| share * each + i + n as u32 * rows_together(D) + own;
        let rows: [_; TOGETHER] = core::array::from_fn(|n| words(from, row(n), warp));
        for n in 0..TOGETHER {
            for part in 0..D.div_ceil(8) {
                let x = less::<E>(rows[n][part], means.0[part], row(n), from.rows());
                for i in 0..4 {
                    largest = largest.max(x[i].to_bits() & 0x7fff_ffff);
                }
            }
        }
        i += rows_at_once(D);
    }
    warp.largest(largest)
}

impl<const D: usize> GlobalRows<E4m3, D> {
    #[inline(always)]
    fn store_word(&self, row: u32, word: u32, x: u32) {
        let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64).wrapping_add(word as u64 * 4);
        // SAFETY: the store happens only if row and word exist. Base and stride are multiples of 16, as
        // `GlobalRows` promises.
        unsafe { st_global_b32_if(at, x, row < self.rows && word / 4 < self.chunks) }
    }

    /// Rounds [`rows_at_once`] rows of `from` from row `first` on, less the means, to these rows. The columns
    /// of a base tile are stored in the order of [`byte_of_column`](crate::layout::byte_of_column), or
    /// `in_order`; then the means must be [`ColumnMeans::NONE`].
    #[inline(always)]
    pub fn round_rows<E: Unpack>(
        &self,
        from: &GlobalRows<E, D>,
        first: u32,
        (means, by): (&ColumnMeans, Fp8Scale),
        in_order: bool,
        warp: Warp,
    ) {
        let (tile, own) = place::<D>(warp);
        let row = |n: usize| first + n as u32 * rows_together(D) + own;
        let rows: [_; TOGETHER] = core::array::from_fn(|n| words_of(from, row(n), in_order, warp));
        for n in 0..TOGETHER {
            for part in 0..D.div_ceil(8) {
                let word = (tile + 8 * part as u32) * 4 + warp.lane % 4;
                let x = less::<E>(rows[n][part], means.0[part], row(n), from.rows());
                self.store_word(row(n), word, pack_e4m3_x4(x.map(|x| x * by.inverse)));
            }
        }
    }

    /// Rounds 16 rows of `from`, from row `16 * tile` on, to columns. This tensor's rows are the columns of
    /// `from`, `16 C` for each block of `8 D` base tiles of rows; rows that do not exist become zero.
    #[inline(always)]
    pub fn round_columns<E: Unpack, const C: usize>(
        &self,
        from: &GlobalRows<E, C>,
        tile: u32,
        by: Fp8Scale,
        warp: Warp,
    ) {
        let (block, within) = (tile / D as u32, tile % D as u32);
        let (own, pair) = (warp.lane % 4, warp.lane / 4);
        for i in (0..C as u32).step_by(4) {
            // A lane has two columns of four rows, which are four bytes of two rows.
            let words: [[u32; 4]; 4] = core::array::from_fn(|n| {
                [0, 1, 8, 9].map(|row| {
                    let chunk = 2 * (i + n as u32) + pair / 4;
                    from.predicated_word(tile * 16 + own * 2 + row, chunk, pair % 4)
                })
            });
            for n in 0..4 {
                let two = words[n].map(E::unpack);
                for column in 0..2 {
                    let row = (block * C as u32 + i + n as u32) * 16 + column as u32 + 2 * pair;
                    let x = two.map(|two| two[column] * by.inverse);
                    self.store_word(row, within * 4 + own, pack_e4m3_x4(x));
                }
            }
        }
    }
}

impl<const D: usize> GlobalRows<E4m3, D> {
    /// [`round_columns`](Self::round_columns) of e4m3, whose bytes stay as they are.
    #[inline(always)]
    pub fn lay_columns<const C: usize>(&self, from: &GlobalRows<E4m3, C>, tile: u32, warp: Warp) {
        self.lay::<C>(tile, warp, |half, row, chunk, word| {
            from.predicated_word(tile * 16 + row + 8 * half, chunk, word)
        })
    }

    /// [`lay_columns`](Self::lay_columns) of rows that lie in two parts of eight.
    #[inline(always)]
    pub fn lay_halves<const C: usize>(&self, from: &[GlobalRows<E4m3, C>; 2], tile: u32, warp: Warp) {
        self.lay::<C>(tile, warp, |half, row, chunk, word| {
            let from = if half == 0 { &from[0] } else { &from[1] };
            from.predicated_word(row, chunk, word)
        })
    }

    /// Lays tile `tile` of rows. `load` returns a word of a chunk of a row in half 0 or 1 of the tile.
    #[inline(always)]
    fn lay<const C: usize>(&self, tile: u32, warp: Warp, load: impl Fn(u32, u32, u32, u32) -> u32) {
        const { assert!(C.is_multiple_of(4), "a warp has 64 columns in flight") }
        let (block, within) = (tile / D as u32, tile % D as u32);
        let (own, four) = (warp.lane % 4, warp.lane / 4);
        for i in (0..C as u32).step_by(4) {
            // A lane has four columns of four rows, which are four bytes of four rows.
            let words: [[u32; 4]; 2] = core::array::from_fn(|n| {
                [[0, 0], [0, 1], [1, 0], [1, 1]]
                    .map(|[half, row]| load(half, own * 2 + row, i + 2 * n as u32 + four / 4, four % 4))
            });
            for n in 0..2 {
                let first = (block * C as u32 + i + 2 * n as u32) * 16 + four * 4;
                let columns = transposed(words[n]);
                for column in 0..4 {
                    self.store_word(first + column, within * 4 + own, columns[column as usize]);
                }
            }
        }
    }
}

/// Four words, of which word `i` has byte `i` of each of these words.
#[inline(always)]
fn transposed([a, b, c, d]: [u32; 4]) -> [u32; 4] {
    // The first or the last two bytes of two words, alternately.
    let of = permute_bytes_of;
    let [first, last] = [[of(a, b, 0x5140), of(c, d, 0x5140)], [of(a, b, 0x7362), of(c, d, 0x7362)]];
    let both = |[x, y]: [u32; 2]| [of(x, y, 0x5410), of(x, y, 0x7632)];
    let ([w0, w1], [w2, w3]) = (both(first), both(last));
    [w0, w1, w2, w3]
}

impl ColumnMeans {
    /// Nothing: rows less these means are the rows.
    pub const NONE: Self = ColumnMeans([[0.0; 4]; PARTS]);

    /// The product of a row and the means, equal in all lanes.
    #[inline(always)]
    pub fn dot<E: Unpack, const D: usize>(&self, from: &GlobalRows<E, D>, row: u32, warp: Warp) -> f32 {
        let words = words(from, row, warp);
        let mut sum = 0.0;
        for part in 0..D.div_ceil(8) {
            let x = four::<E>(words[part]);
            for i in 0..4 {
                sum = fma(x[i], self.0[part][i], sum);
            }
        }
        let sum = warp.octet(warp.quad(sum, |a, b| a + b), |a, b| a + b);
        // With 64 columns, each half of the warp has the row.
        if D == 4 { sum * 0.5 } else { sum }
    }
}
