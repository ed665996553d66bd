//! Rounds rows of 16 bits to images of stages of bytes.
use crate::global::{GlobalRows, RowQuantiser};
use crate::mma::Unpack;
use crate::shared::StageImage;
use crate::{Block, Smem, Warp};
use contract::{F32, Int8, Kernel};
use cuda_std::math::{opaque, pack_e4m3_x4, stay_a_loop};
use cuda_std::memory::st_global_b32_if;

/// Number of rows that a mean samples.
const SAMPLES: u32 = 64;
/// The largest e4m3.
pub(super) const LARGEST: f32 = 448.0;
/// Magnitudes below this number, 2^-100, become 0: their quotients would leave f32.
pub(super) const SMALLEST: f32 = f32::from_bits(27 << 23);
/// Number of rows whose loads are in flight together.
pub(super) const TOGETHER: usize = 8;
/// A lane has four columns of each eighth base tile, of at most 16.
pub(super) const PARTS: usize = 2;

/// The mean of each column over at most 64 rows that are evenly spaced: this lane's four columns of each
/// part. Of each eight of these rows, the least and the largest number do not count: one row of large numbers
/// would make the mean theirs, and all other rows would lose their bits. A mean that is not finite is 0.
#[derive(Clone, Copy)]
pub struct ColumnMeans(pub(super) [[f32; 4]; PARTS]);

/// This lane's base tile of columns in part 0, and which of the rows that a warp has together.
#[inline(always)]
pub(super) fn place<const D: usize>(warp: Warp) -> (u32, u32) {
    const { assert!(D == 4 || D == 8 || D == 16, "a row takes half a warp, or one or two parts of a warp") }
    (warp.lane / 4 % D as u32, warp.lane / 4 / D as u32)
}

/// This lane's columns of a row as they are in memory: two words of each part of [`ColumnMeans`].
#[inline(always)]
pub(super) fn words<E: Unpack, const D: usize>(
    from: &GlobalRows<E, D>,
    row: u32,
    warp: Warp,
) -> [[u32; 2]; PARTS] {
    let (tile, _) = place::<D>(warp);
    let mut words = [[0; 2]; PARTS];
    for part in 0..D.div_ceil(8) {
        let first = 2 * (tile + 8 * part as u32);
        words[part] = [0, 1].map(|half| from.predicated_word(row, first + half, warp.lane % 4));
    }
    words
}

/// The four columns of a part of a row, in the order of [`byte_of_column`](crate::layout::byte_of_column).
#[inline(always)]
pub(super) fn four<E: Unpack>(words: [u32; 2]) -> [f32; 4] {
    let [[a, b], [c, d]] = words.map(E::unpack);
    [a, b, c, d]
}

/// The sum of eight numbers, `trimmed` without the least and the largest.
#[inline(always)]
fn sum_of_eight(x: [f32; TOGETHER], trimmed: bool) -> f32 {
    // Nothing is subtracted from the sum: a large number has cut the others in it.
    let (mut least, mut largest, mut sum) = (x[0].min(x[1]), x[0].max(x[1]), 0.0);
    for x in &x[2..] {
        sum += largest.min(x.max(least));
        (least, largest) = (least.min(*x), largest.max(*x));
    }
    if trimmed { sum } else { sum + (least + largest) }
}

impl ColumnMeans {
    /// The means of a tensor's rows. Of 8 rows and more, samples that do not make up eight do not count.
    #[inline(always)]
    pub fn of<E: Unpack, const D: usize>(from: &GlobalRows<E, D>, warp: Warp) -> Self {
        let (rows, of_eight) = (from.rows(), TOGETHER as u32);
        let eights = (rows.min(SAMPLES) / of_eight).max(1);
        let (mut sums, mut row, mut rest) = ([[0.0; 4]; PARTS], 0, 0);
        // Sample `i` is row `i * rows / 64`, without a division.
        let (step, more) = (rows / SAMPLES, rows % SAMPLES);
        let (mut taken, end) = (0, opaque(eights));
        while taken < end {
            stay_a_loop();
            // The loads of all rows are in flight together. Rows that do not exist are 0.
            let samples: [_; TOGETHER] = core::array::from_fn(|_| {
                let sample = words(from, row, warp);
                rest += more;
                row += if rows < SAMPLES { 1 } else { step + rest / SAMPLES };
                rest %= SAMPLES;
                sample
            });
            for part in 0..D.div_ceil(8) {
                let samples = samples.map(|sample| four::<E>(sample[part]));
                for i in 0..4 {
                    sums[part][i] += sum_of_eight(samples.map(|x| x[i]), rows >= of_eight);
                }
            }
            taken += 1;
        }
        let factor = 1.0 / if rows < of_eight { rows.max(1) } else { eights * (of_eight - 2) } as f32;
        ColumnMeans(
            sums.map(|part| part.map(|x| x * factor).map(|x| if x.abs() < f32::INFINITY { x } else { 0.0 })),
        )
    }

    /// Stores the means as one row of f32.
    #[inline(always)]
    pub fn store<const D: usize>(&self, to: &GlobalRows<F32, D>, warp: Warp) {
        let (tile, row) = place::<D>(warp);
        for part in 0..D.div_ceil(8) {
            for i in 0..4 {
                let column = (tile + 8 * part as u32) * 16 + i / 2 * 8 + warp.lane % 4 * 2 + i % 2;
                let exists = warp.index == 0 && row == 0 && column / 4 < to.chunks;
                let at = to.base.wrapping_add(column as u64 * 4);
                // SAFETY: the store happens only if the column exists. The base is a multiple of 16, as
                // `GlobalRows` promises.
                unsafe { st_global_b32_if(at, self.0[part][i as usize].to_bits(), exists) }
            }
        }
    }
}

impl<const N: usize, const D: usize, const DV: usize> StageImage<N, D, DV> {
    /// Rounds rows of `from`, from row `first` on, less the means, to the image's integers. Rows that do not
    /// exist become zero.
    #[inline(always)]
    pub fn round_rows<E: Unpack, K: Kernel>(
        &self,
        from: &GlobalRows<E, D>,
        first: u32,
        means: &ColumnMeans,
        block: &Block<K>,
    ) {
        let (warp, (tile, own)) = (block.warp(), place::<D>(block.warp()));
        // The rows that a warp has together, and the rows of the whole block.
        let (together, all) = (8u32.div_ceil(D as u32), K::THREADS / 32 * 8u32.div_ceil(D as u32));
        for i in 0..N as u32 * 16 / all {
            let row = i * all + warp.index * together + own;
            let exists = first + row < from.rows();
            let (mut parts, mut largest) = ([[0.0; 4]; PARTS], 0);
            let all = words(from, first + row, warp);
            for part in 0..D.div_ceil(8) {
                let x = four::<E>(all[part]);
                for c in 0..4 {
                    parts[part][c] = if exists { x[c] - means.0[part][c] } else { 0.0 };
                    largest = largest.max(parts[part][c].to_bits() & 0x7fff_ffff);
                }
            }
            let quantiser = RowQuantiser::of(match D {
                4 => warp.largest_of_half(largest),
                _ => warp.largest(largest),
            });
            for part in 0..D.div_ceil(8) {
                let word = (tile + 8 * part as u32) * 4 + warp.lane % 4;
                self.store_integers(row, word, quantiser.round_four(parts[part]), warp);
            }
            if tile == 0 && warp.lane % 4 == 0 {
                // The products need scales of 22 significant bits: `Integers::scaled`.
                let scale = f32::from_bits(quantiser.scale().to_bits() & !3);
                self.store_row_scale(row, scale, warp);
            }
        }
    }

    /// Rounds rows of `from`, from row `first` on, to the image's e4m3, with one scale. The image has columns
    /// of `from` as rows. Rows that do not exist become zero.
    #[inline(always)]
    pub fn round_columns<E: Unpack, K: Kernel>(
        &self,
        from: &GlobalRows<E, DV>,
        first: u32,
        block: &mut Block<K>,
        smem: &mut Smem<K>,
    ) {
        const { assert!(DV == 0 || K::THREADS == 128 && N == 4, "a warp has 16 rows") }
        let warp = block.warp();
        let (group, pair) = (warp.index, warp.lane / 4);
        // A lane has two columns of four rows, which are four bytes of two rows of the image.
        let mut own = [[[0.0; 4]; 2]; DV];
        let mut largest = 0;
        for (i, own) in own.iter_mut().enumerate() {
            for c in 0..4 {
                let row = first + group * 16 + warp.lane % 4 * 2 + c / 2 * 8 + c % 2;
                let x = E::unpack(from.predicated_word(row, (2 * i) as u32 + pair / 4, pair % 4));
                for column in 0..2 {
                    own[column][c as usize] = x[column];
                    largest = largest.max(x[column].to_bits() & 0x7fff_ffff);
                }
            }
        }
        let (scale, inverse) = scale_of_block(largest, block, smem);
        for (i, own) in own.iter().enumerate() {
            for column in 0..2 {
                let row = (16 * i + column) as u32 + 2 * pair;
                let word = pack_e4m3_x4(own[column].map(|x| x * inverse));
                self.store_floats(row, group * 4 + warp.lane % 4, word, warp);
            }
        }
        if warp.index == 0 && warp.lane == 0 {
            self.store_scale(scale, warp);
        }
    }

    /// [`StageImage::round_columns`] of integers, of which `load(row)` returns one row, below `16 N`, and the
    /// row's scale.
    #[inline(always)]
    pub fn round_columns_of<K: Kernel>(
        &self,
        load: impl Fn(u32) -> (GlobalRows<Int8, DV>, f32),
        block: &mut Block<K>,
        smem: &mut Smem<K>,
    ) {
        const { assert!(K::THREADS == 128 && N == 4 && DV.is_multiple_of(2), "a warp has 16 rows") }
        let warp = block.warp();
        let (group, four) = (warp.index, warp.lane / 4);
        // A lane has four columns of four rows, which are four bytes of four rows of the image.
        let mut own = [[[0.0; 4]; 4]; DV];
        let mut largest = 0;
        for c in 0..4 {
            let (row, scale) = load(group * 16 + warp.lane % 4 * 2 + c / 2 * 8 + c % 2);
            for i in 0..DV / 2 {
                let word = row.predicated_word(0, (2 * i) as u32 + four / 4, four % 4);
                for column in 0..4 {
                    let x = ((word << (24 - 8 * column)) as i32 >> 24) as f32 * scale;
                    own[i][column][c as usize] = x;
                    largest = largest.max(x.to_bits() & 0x7fff_ffff);
                }
            }
        }
        let (scale, inverse) = scale_of_block(largest, block, smem);
        for i in 0..DV / 2 {
            for column in 0..4 {
                let row = (32 * i + column) as u32 + 4 * four;
                let word = pack_e4m3_x4(own[i][column].map(|x| x * inverse));
                self.store_floats(row, group * 4 + warp.lane % 4, word, warp);
            }
        }
        if warp.index == 0 && warp.lane == 0 {
            self.store_scale(scale, warp);
        }
    }
}

/// The scale of a block's numbers, and its inverse. `largest` are the bits of this lane's largest magnitude.
#[inline(always)]
fn scale_of_block<K: Kernel>(largest: u32, block: &mut Block<K>, smem: &mut Smem<K>) -> (f32, f32) {
    let warp = block.warp();
    let largest = warp.largest(largest);
    let most = smem.lend::<_, 4>(block, |tally, block| {
        let all = tally.write(core::iter::once((warp.index, largest)), block);
        (0..4).fold(0, |most, i| most.max(all.get(i)))
    });
    let most = f32::from_bits(most);
    match most {
        most if most < SMALLEST => (0.0, 0.0),
        most if most < f32::INFINITY => (most / LARGEST, LARGEST / most),
        _ => (f32::NAN, 0.0),
    }
}
