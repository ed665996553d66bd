//! Conversion of a shared tile to another element type, by the threads of a group.
//!
//! A thread reads eight elements and writes a whole chunk, row by row. Its reads and its writes are free of
//! bank conflicts (tests).
use crate::group::ThreadGroup;
use crate::layout;
use crate::shared::{Scaled, SharedTile, SharedTiles, TileSlot, TileSlots};
use contract::{Bf16, E4m3, Element, F16, Int8, Native};
use core::marker::PhantomData;
use cuda_std::math::{
    pack_bf16, pack_f16, permute_bytes, permute_bytes_of, subtract_f16, unpack_e4m3, unpack_f16,
};
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v4_b32};

/// An element type of eight bits that converts to `E`.
pub trait ConvertTo<E>: Scaled {
    /// The value of a stored element divided by the value of the converted element. It is 1 unless the
    /// conversion only shifts bits.
    const FACTOR: f32;
    /// Converts four elements, in order.
    fn convert(x: u32) -> [u32; 2];
    /// Converts four elements of a row with this scale, in order. Rows without scales are not scaled.
    #[inline(always)]
    fn convert_row(x: u32, _: f32) -> [u32; 2] {
        Self::convert(x)
    }
}

impl ConvertTo<F16> for Native<E4m3> {
    const FACTOR: f32 = 1.0;
    #[inline(always)]
    fn convert(x: u32) -> [u32; 2] {
        unpack_e4m3(x)
    }
}

impl ConvertTo<F16> for E4m3 {
    const FACTOR: f32 = 256.0;
    #[inline(always)]
    fn convert(x: u32) -> [u32; 2] {
        shift_odd_even(permute_bytes(x, 0x3120))
    }
}

impl ConvertTo<F16> for Int8 {
    const FACTOR: f32 = 1.0;
    #[inline(always)]
    fn convert(x: u32) -> [u32; 2] {
        integers(x, [0x4140, 0x4342])
    }
    #[inline(always)]
    fn convert_row(x: u32, scale: f32) -> [u32; 2] {
        scaled(x, scale, pack_f16)
    }
}

/// Converts four elements to bf16 by way of f16. Every number of eight bits is a f16 and a bf16.
#[inline(always)]
fn by_f16<S: ConvertTo<F16>>(x: u32) -> [u32; 2] {
    S::convert(x).map(|pair| {
        let [lo, hi] = unpack_f16(pair);
        pack_bf16(lo, hi)
    })
}

macro_rules! to_bf16 {
    ($($element:ty),*) => { $(impl ConvertTo<Bf16> for $element {
        const FACTOR: f32 = <Self as ConvertTo<F16>>::FACTOR;
        #[inline(always)]
        fn convert(x: u32) -> [u32; 2] {
            by_f16::<Self>(x)
        }
    })* };
}
to_bf16!(E4m3, Native<E4m3>);

impl ConvertTo<Bf16> for Int8 {
    const FACTOR: f32 = 1.0;
    #[inline(always)]
    fn convert(x: u32) -> [u32; 2] {
        by_f16::<Self>(x)
    }
    #[inline(always)]
    fn convert_row(x: u32, scale: f32) -> [u32; 2] {
        scaled(x, scale, pack_bf16)
    }
}

/// Bytes 0, 2 and bytes 1, 3 as f16, each scaled by 2^-8. The bits of an e4m3 are shifted into an f16
/// unchanged, so only the exponent's bias differs, also for subnormal numbers. NaN becomes 480 * 2^-8.
#[inline(always)]
pub(crate) fn shift_odd_even(x: u32) -> [u32; 2] {
    let odd = (x & 0x8000_8000) | (x & 0x7f00_7f00) >> 1;
    let even = (x & 0x0080_0080) << 8 | (x & 0x007f_007f) << 7;
    [even, odd]
}

/// Four integers as f16, in the order of `prmt`'s selectors. With its sign bit flipped, a byte is the integer
/// plus 128. As the low byte of an f16 with the upper byte 0x64, it is the integer plus 1152.
#[inline(always)]
fn integers(x: u32, orders: [u32; 2]) -> [u32; 2] {
    let bytes = x ^ 0x8080_8080;
    orders.map(|order| subtract_f16(permute_bytes_of(bytes, 0x6464_6464, order), 0x6480_6480))
}

/// Integers 0, 2 and integers 1, 3 as f16.
#[inline(always)]
pub(crate) fn integers_odd_even(x: u32) -> [u32; 2] {
    integers(x, [0x4240, 0x4341])
}

/// Four integers times a scale, rounded once by `pack`. The conversion to f32 is exact: the byte is the low
/// byte of 2^23 plus the integer plus 128.
#[inline(always)]
fn scaled(x: u32, scale: f32, pack: fn(f32, f32) -> u32) -> [u32; 2] {
    let bytes = x ^ 0x8080_8080;
    let number = |i: u32| {
        let bits = permute_bytes_of(bytes, 0x4b00_0000, 0x7440 | i);
        (f32::from_bits(bits) - 8_388_736.0) * scale
    };
    [pack(number(0), number(1)), pack(number(2), number(3))]
}

/// Stores of the threads of group `W`, as the way in which a slot is written.
pub struct Stores<W>(PhantomData<W>);

/// The most chunks that a thread converts at once.
const MOST_TURNS: usize = 16;

/// The row and the chunk of a converted tile that a thread writes first.
const fn place(chunks: u32, thread: u32) -> [u32; 2] {
    [thread / chunks, thread % chunks]
}

/// Byte offset of a converted chunk's eight elements in the stored tile of `rows` rows.
#[inline(always)]
const fn source(rows: u32, chunks: u32, row: u32, chunk: u32) -> u32 {
    layout::offset(rows, chunks / 2, row, chunk / 2) + chunk % 2 * (layout::CHUNK / 2)
}

impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileSlot<E, R, C, Stores<W>> {
    /// Converts the thread's share of `from`. `scale` returns the scale of a row, if rows have scales.
    #[inline(always)]
    pub fn convert<S: ConvertTo<E>>(
        &self,
        from: &SharedTile<S, R, C>,
        scale: impl Fn(u32) -> f32,
        group: &W,
    ) {
        const { assert!(S::BYTES * 2 == E::BYTES, "a chunk of the converted tile is half a stored one") }
        let (rows, chunks) = (SharedTile::<E, R, C>::ROWS, SharedTile::<E, R, C>::ROW_CHUNKS);
        let (at_once, turns) = const {
            let (rows, chunks) = (SharedTile::<E, R, C>::ROWS, SharedTile::<E, R, C>::ROW_CHUNKS);
            assert!(W::THREADS.is_multiple_of(chunks), "the threads must make up whole rows");
            let at_once = W::THREADS / chunks;
            assert!(rows.is_multiple_of(at_once), "turns must make up the rows");
            (at_once, (rows / at_once) as usize)
        };
        let [row, chunk] = place(chunks, group.member());
        // All loads come first, so that they are in flight together.
        let (mut words, mut scales) = ([[0; 2]; MOST_TURNS], [1.0; MOST_TURNS]);
        const { assert!(R * 16 * C * 2 <= W::THREADS as usize * MOST_TURNS, "more turns than registers") }
        for turn in 0..turns {
            let row = turn as u32 * at_once + row;
            // SAFETY: half a chunk of a readable tile.
            words[turn] = unsafe { ld_shared_v2_b32(from.base + source(rows, chunks, row, chunk)) };
            scales[turn] = scale(row);
        }
        for turn in 0..turns {
            let row = turn as u32 * at_once + row;
            let [[a, b], [c, d]] = words[turn].map(|x| S::convert_row(x, scales[turn]));
            // SAFETY: a chunk of this slot, which no thread reads before the group's barrier.
            unsafe { st_shared_v4_b32(self.base + SharedTile::<E, R, C>::offset(row, chunk), [a, b, c, d]) }
        }
    }
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize, W: ThreadGroup>
    TileSlots<E, R, C, COUNT, Stores<W>>
{
    /// Converts the thread's share of every tile.
    #[inline(always)]
    pub fn convert<S: ConvertTo<E>>(
        &self,
        from: &SharedTiles<S, R, C, COUNT>,
        scale: impl Fn(u32) -> f32,
        group: &W,
    ) {
        const { assert!(COUNT == 1, "the scales of several tiles lie in several places") }
        self.each_with(from, |slot, from| slot.convert(from, &scale, group));
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use layout::{CHUNK, offset};
    use std::collections::HashSet;
    use std::vec::Vec;

    /// The value of the f16 with these bits.
    fn f16(bits: u32) -> f64 {
        f64::from(unpack_f16(bits)[0])
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

    /// Head dims 64 to 256 in 16 bits, by the threads of 128 and 256.
    #[test]
    fn threads_convert_each_chunk_once_without_bank_conflicts() {
        for (chunks, threads, rows) in [(8, 128, 64), (16, 128, 48), (16, 256, 64), (32, 128, 32)] {
            let all: Vec<_> = (0..rows * chunks / threads)
                .flat_map(|turn| {
                    (0..threads).map(move |thread| {
                        let [row, chunk] = place(chunks, thread);
                        let row = turn * (threads / chunks) + row;
                        (offset(rows, chunks, row, chunk), source(rows, chunks, row, chunk))
                    })
                })
                .collect();
            let distinct = |of: fn(&(u32, u32)) -> u32| all.iter().map(of).collect::<HashSet<_>>().len();
            assert_eq!([distinct(|x| x.0), distinct(|x| x.1)], [all.len(); 2], "{chunks} chunks");
            // 8 lanes write 128 bytes at once, 16 lanes read 128 bytes at once.
            for lanes in all.chunks(8) {
                let to: Vec<_> = lanes.iter().map(|x| x.0).collect();
                assert_eq!(layout::conflict_degree(&to), 1, "{chunks} chunks");
            }
            for lanes in all.chunks(16) {
                let banks: HashSet<_> = lanes.iter().map(|x| x.1 % 128).collect();
                assert_eq!(banks.len(), 16, "{chunks} chunks");
                assert!(banks.iter().all(|at| at.is_multiple_of(CHUNK / 2)));
            }
        }
    }
}
