//! Conversion of rows of eight bits to rows of another element type, by the threads of a group. Other than
//! [`crate::shared::convert`], a stored row may be wider than its numbers, and the threads need not make up
//! whole rows.
//!
//! Eight threads have a row of a panel of 64 columns. Their reads and writes are free of bank conflicts
//! (test).
use crate::group::ThreadGroup;
use crate::layout::{self, CHUNK};
use crate::shared::{ConvertTo, SharedTile, Stores, TileSlot};
use contract::{Bf16, E4m3, E4m3Scaled, Element, F16, Native};
use cuda_std::math::{pack_bf16, unpack_f16};
use cuda_std::memory::st_shared_v4_b32;
use cuda_std::memory::{ld_shared_v2_b32, ld_shared_v4_b32};

/// Stored rows that convert to rows of `E`.
pub trait ConvertRows<E>: Element {
    /// The value of a stored number, divided by the value of the converted number.
    const FACTOR: f32;
    /// Where a thread reads a row: addresses and scales.
    type Row: Copy;
    /// Starts to read row `row` of a tile at `base`. The thread converts chunk `chunk` of each panel.
    ///
    /// # Safety
    /// - The tile is readable, has `rows` rows, and `row` is below it.
    unsafe fn row(base: u32, rows: u32, row: u32, chunk: u32) -> Self::Row;
    /// The eight numbers of the thread's chunk of panel `panel`.
    ///
    /// # Safety
    /// - The tile is readable, has `rows` rows, and its rows have this panel.
    unsafe fn panel(from: &Self::Row, rows: u32, panel: u32) -> [u32; 4];
}

/// Byte offset from the first panel's chunk to the chunk of panel `panel`, if `panel` is even. A stored panel
/// has 128 bytes, which are two converted panels.
#[inline(always)]
const fn panels(rows: u32, panel: u32) -> u32 {
    panel / 2 * rows * 128
}

/// Byte offset of the first panel's chunk `chunk` of eight numbers, in a stored tile.
#[inline(always)]
const fn source(row: u32, chunk: u32) -> u32 {
    row * 128 + ((chunk / 2) ^ layout::swizzle(8, row)) * CHUNK + chunk % 2 * (CHUNK / 2)
}

/// The address of the thread's chunk of panel `panel`, if `first` is the address of its chunk of panel 0. The
/// second half of a stored panel differs from the first in one bit of a chunk's index.
#[inline(always)]
const fn at_panel(first: u32, rows: u32, panel: u32) -> u32 {
    (first ^ (panel % 2 * 64)) + panels(rows, panel)
}

/// The row of the thread with this index among those of a step: two rows that 16 lanes read lie in different
/// halves of their panels.
#[inline(always)]
const fn row_of(index: u32) -> u32 {
    index / 8 * 8 + index % 2 * 4 + index / 2 % 4
}

macro_rules! unscaled {
    ($($stored:ty),*) => { $(impl<E> ConvertRows<E> for $stored
    where
        $stored: ConvertTo<E>,
    {
        const FACTOR: f32 = <$stored as ConvertTo<E>>::FACTOR;
        type Row = u32;
        #[inline(always)]
        unsafe fn row(base: u32, _: u32, row: u32, chunk: u32) -> u32 {
            base + source(row, chunk)
        }
        #[inline(always)]
        unsafe fn panel(from: &u32, rows: u32, panel: u32) -> [u32; 4] {
            // SAFETY: half a chunk of a readable tile.
            let words = unsafe { ld_shared_v2_b32(at_panel(*from, rows, panel)) };
            let [[a, b], [c, d]] = words.map(<$stored as ConvertTo<E>>::convert);
            [a, b, c, d]
        }
    })* };
}
unscaled!(E4m3, Native<E4m3>);

/// Chunks of an [`E4m3Scaled`] row before its scales, and before its bf16.
const SCALES: u32 = E4m3Scaled::SCALED as u32 / CHUNK;
const PLAIN: u32 = SCALES + (E4m3Scaled::SCALED / E4m3Scaled::PER_SCALE * 4) as u32 / CHUNK;
/// Panels of 64 numbers with scales, and how many of them share one.
const SCALED_PANELS: u32 = E4m3Scaled::SCALED as u32 / 64;
const PER_SCALE: u32 = E4m3Scaled::PER_SCALE as u32 / 64;

/// Converts eight numbers with this scale, which is rounded once per number.
#[inline(always)]
fn scaled<S: ConvertTo<F16>>(words: [u32; 2], scale: f32) -> [u32; 4] {
    let scale = scale * <S as ConvertTo<F16>>::FACTOR;
    let [[a, b], [c, d]] = words.map(<S as ConvertTo<F16>>::convert);
    [a, b, c, d].map(|pair| {
        let [lo, hi] = unpack_f16(pair);
        pack_bf16(lo * scale, hi * scale)
    })
}

macro_rules! with_scales {
    ($($stored:ty: $number:ty),*) => { $(impl ConvertRows<Bf16> for $stored {
        const FACTOR: f32 = 1.0;
        /// The address of the thread's numbers, the address of its bf16, and the scales.
        type Row = ([u32; 2], [u32; 4]);
        #[inline(always)]
        unsafe fn row(base: u32, rows: u32, row: u32, chunk: u32) -> Self::Row {
            let at = |chunk: u32| base + layout::offset(rows, 8, row, chunk);
            // SAFETY: a chunk of a readable tile.
            let scales = unsafe { ld_shared_v4_b32(at(SCALES)) };
            ([base + source(row, chunk), at(PLAIN + chunk)], scales)
        }
        #[inline(always)]
        unsafe fn panel(([at, plain], scales): &Self::Row, rows: u32, panel: u32) -> [u32; 4] {
            if panel >= SCALED_PANELS {
                // SAFETY: a chunk of a readable tile.
                return unsafe { ld_shared_v4_b32(*plain) };
            }
            // SAFETY: half a chunk of a readable tile.
            let words = unsafe { ld_shared_v2_b32(at_panel(*at, rows, panel)) };
            scaled::<$number>(words, f32::from_bits(scales[(panel / PER_SCALE) as usize]))
        }
    })* };
}
with_scales!(E4m3Scaled: E4m3, Native<E4m3Scaled>: Native<E4m3>);

impl<E: Element, const R: usize, const C: usize, W: ThreadGroup> TileSlot<E, R, C, Stores<W>> {
    /// Converts the thread's share of the rows of `from`.
    #[inline(always)]
    pub fn convert_rows<S: ConvertRows<E>, const CS: usize>(&self, from: &SharedTile<S, R, CS>, group: &W) {
        const {
            assert!(S::BYTES == 1 && E::BYTES == 2, "a panel of the converted tile is 64 columns of bytes");
            assert!(layout::panel_chunks(SharedTile::<E, R, C>::ROW_CHUNKS) == 8, "panels have 64 columns");
            assert!(layout::panel_chunks(SharedTile::<S, R, CS>::ROW_CHUNKS) == 8, "panels have 128 bytes");
            assert!(C <= CS, "a stored row has a panel for each converted one");
            assert!((R as u32 * 16).is_multiple_of(W::THREADS / 8), "the threads must make up the rows");
        }
        let rows = SharedTile::<E, R, C>::ROWS;
        let [row, chunk] = [row_of(group.member() / 8), group.member() % 8];
        for turn in 0..rows / (W::THREADS / 8) {
            let row = turn * (W::THREADS / 8) + row;
            // SAFETY: the tile is readable, and has these rows and panels.
            let stored = unsafe { S::row(from.base, rows, row, chunk) };
            let to = self.base + SharedTile::<E, R, C>::offset(row, chunk);
            for panel in 0..C as u32 / 4 {
                // SAFETY: the chunk is a part of this slot, which no thread reads before the group's barrier.
                unsafe { st_shared_v4_b32(to + panel * rows * 128, S::panel(&stored, rows, panel)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn threads_read_and_write_rows_without_bank_conflicts() {
        let threads = |first: u32, lanes: u32| (first..first + lanes).map(|i| [row_of(i / 8), i % 8]);
        let rows: HashSet<_> = (0..32).map(row_of).collect();
        assert!(rows.len() == 32 && rows.iter().all(|row| *row < 32));
        for first in (0..256).step_by(16) {
            // 8 lanes write 128 bytes at once, 16 lanes read 128 bytes at once.
            for first in [first, first + 8] {
                let written: Vec<_> = threads(first, 8).map(|[r, c]| layout::offset(32, 72, r, c)).collect();
                assert_eq!(layout::conflict_degree(&written), 1);
                let plain: Vec<_> =
                    threads(first, 8).map(|[r, c]| layout::offset(32, 48, r, PLAIN + c)).collect();
                assert!(layout::conflict_degree(&plain) <= 2);
            }
            for panel in 0..9 {
                let read = threads(first, 16).map(|[r, c]| at_panel(source(r, c), 32, panel) % 128);
                let read: HashSet<_> = read.collect();
                assert!(read.len() == 16 && read.iter().all(|at| at.is_multiple_of(CHUNK / 2)));
            }
        }
    }

    #[test]
    fn the_parts_of_a_row_follow_each_other() {
        assert_eq!([SCALES, PLAIN], [32, 33]);
        assert_eq!((PLAIN * CHUNK) as usize + E4m3Scaled::PLAIN * 2, E4m3Scaled::ROW_BYTES);
        for (row, chunk) in (0..32 * 36).map(|i| (i / 36, i % 36)) {
            let at = layout::offset(32, 40, row, chunk);
            assert_eq!(at, at_panel(source(row, chunk % 4 * 2), 32, chunk / 4));
        }
    }
}
