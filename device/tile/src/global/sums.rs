//! Sums of f32 in global memory, to which warpgroups add fragments.
use crate::Warp;
use crate::global::GlobalRows;
use crate::group::{Capability, Warpgroup};
use crate::layout;
use crate::mma::{Acc, Mma};
use contract::TileSums;
use cuda_std::atomic::red_add_v4_f32;
use cuda_std::ldmatrix::movmatrix_trans;
use cuda_std::memory::{ld_global_b32, ld_global_v4_b32, st_global_v4_b32};

/// Tiles of sums. Each of `W` warpgroups has a part of a tile: an accumulator of `H` base tiles of columns. A
/// part lies in memory as the registers of the accumulator: `[column tile][half][thread]`, four f32 each.
#[derive(Clone, Copy)]
pub struct GlobalSums<'p, const W: usize, const H: usize>(&'p TileSums);

/// A tile of [`GlobalSums`], which exists.
#[derive(Clone, Copy)]
pub struct SumTile<'p, const W: usize, const H: usize> {
    sums: &'p TileSums,
    /// The index among the tiles of all heads.
    index: u32,
}

/// Bytes of four registers of all threads of a warpgroup.
const QUADS: u64 = 128 * 16;

/// Calls `f(address, four values)` for each half of a column tile, whose sums begin at `at`.
#[inline(always)]
fn each<const H: usize>(acc: &Acc<1, H>, at: u64, f: impl Fn(u64, [f32; 4])) {
    for n in 0..H {
        for h in 0..2 {
            f(at.wrapping_add((n * 2 + h) as u64 * QUADS), acc.0[0][n][h])
        }
    }
}

impl<'p, const W: usize, const H: usize> GlobalSums<'p, W, H> {
    /// The sums that a kernel's parameter describes.
    #[inline(always)]
    pub fn new(sums: &'p TileSums) -> Self {
        GlobalSums(sums)
    }

    /// Tile `n` of head `head`, counted over all batches, or the first tile of all if there is no such tile.
    #[inline(always)]
    pub fn tile(self, head: u32, n: u32) -> SumTile<'p, W, H> {
        // Comparisons take no register from step to step, as smaller bounds would.
        let exists = head < self.0.heads() && n < self.0.tiles();
        SumTile { sums: self.0, index: if exists { head * self.0.tiles() + n } else { 0 } }
    }

    /// Adds to the warpgroup's part of a tile, or stores it if this is the tile's first turn.
    ///
    /// # Safety
    /// - `grant` is of [`SumTile::grant`]. The warpgroup has this turn at the tile ([`crate::turns`]).
    #[inline(always)]
    pub(crate) unsafe fn add(grant: [u32; 2], acc: &Acc<1, H>, group: &Warpgroup<W>) {
        let (tile, is_first) = ((grant[1] as u64) << 32 | (grant[0] & !1) as u64, grant[0] & 1 != 0);
        // This computes the address again for each tile: the numbers would take registers in every step.
        let at = of_thread::<H>(tile, group.index, group.warp.forget_lane());
        match is_first {
            // SAFETY: these are the thread's own words of a tile that exists. Other blocks access them only
            // in their turns, which come after this one.
            true => each(acc, at, |at, x| unsafe { st_global_v4_b32(at, x.map(f32::to_bits)) }),
            // SAFETY: as above; the first turn is over, and all others add.
            false => each(acc, at, |at, x| unsafe { red_add_v4_f32(at, x) }),
        }
    }
}

/// The device address of this thread's first four sums in part `part` of the tile at `tile`.
#[inline(always)]
fn of_thread<const H: usize>(tile: u64, part: u32, warp: Warp) -> u64 {
    let within = (warp.index % 4 * 32 + warp.lane) * 16;
    tile.wrapping_add(part as u64 * (2 * H as u64 * QUADS)).wrapping_add(within as u64)
}

impl<const W: usize, const H: usize> SumTile<'_, W, H> {
    /// The device address of the tile.
    #[inline(always)]
    fn address(self) -> u64 {
        self.sums.base().wrapping_add(self.index as u64 * (2 * W as u64 * H as u64 * QUADS))
    }

    /// The device address of the tile's counter.
    #[inline(always)]
    pub(crate) fn counter(self) -> u64 {
        // The sum of 32 bits: with one of 64 bits, LLVM would keep the address of the first counter.
        self.sums.counters().wrapping_add(TileSums::FIRST_TILE.wrapping_add(self.index) as u64 * 4)
    }

    /// Returns what the keeper tells the warps that add to the tile: the tile's address, whose lowest bit
    /// says whether the warps have the tile's first turn.
    #[inline(always)]
    pub(crate) fn grant(self, is_first: bool) -> [u32; 2] {
        let address = self.address();
        [address as u32 | is_first as u32, (address >> 32) as u32]
    }

    /// Whether an earlier launch has added to the tile. That launch had tiles of `size` of these tiles.
    #[inline(always)]
    pub fn is_begun(self, size: u32, _: &impl Capability) -> bool {
        let index = self.index / size;
        // SAFETY: each tile of the earlier launch has a counter. No thread of this launch writes it.
        unsafe { ld_global_b32(SumTile { index, ..self }.counter()) != 0 }
    }

    /// The part of the warp's warpgroup in the tile, which an earlier launch has computed. The warps of a
    /// warpgroup take 16 rows each.
    #[inline(always)]
    pub fn load(self, warp: Warp) -> Acc<1, H> {
        let part = (warp.index / 4).min(W as u32 - 1);
        let (at, mut acc) = (of_thread::<H>(self.address(), part, warp), Acc::unset());
        for n in 0..H {
            for h in 0..2 {
                // SAFETY: the tile exists and has the part. No thread of this launch writes it.
                let x = unsafe { ld_global_v4_b32(at.wrapping_add((n * 2 + h) as u64 * QUADS)) };
                acc.0[0][n][h] = x.map(f32::from_bits);
            }
        }
        acc
    }
}

impl<E: Mma, const C: usize> GlobalRows<E, C> {
    /// Rounds `acc` and stores it to the rows from `row0` and the base tiles of columns from `column0` on,
    /// where they exist. The lanes of a quad exchange words, so that each lane stores 16 contiguous bytes.
    #[inline(always)]
    pub fn store_by_quads<const N: usize>(&self, acc: &Acc<1, N>, [row0, column0]: [u32; 2], warp: Warp) {
        debug_assert!(N.is_multiple_of(2), "a quad stores four chunks");
        let (row, own) = (warp.lane / 4, warp.lane % 4);
        for pair in 0..N / 2 {
            for half in 0..2 {
                let mut words: [u32; 4] = core::array::from_fn(|j| {
                    let of = &acc.0[0][pair * 2 + j / 2][j % 2];
                    E::pack(of[half * 2], of[half * 2 + 1])
                });
                transpose(&mut words, own, warp);
                let row = row0 + half as u32 * 8 + row;
                let chunk = column0 * 2 + pair as u32 * 4 + own;
                if row < self.rows && chunk < self.chunks {
                    let within = row as u64 * self.row_bytes as u64 + (chunk * layout::CHUNK) as u64;
                    // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows`
                    // promises.
                    unsafe { st_global_v4_b32(self.base.wrapping_add(within), words) }
                }
            }
        }
    }

    /// Rounds the transpose of `acc` and stores it to the rows from `row0` on and base tile `column` of the
    /// columns, where they exist.
    #[inline(always)]
    pub fn store_transposed<const N: usize>(&self, acc: &Acc<1, N>, [row0, column]: [u32; 2], warp: Warp) {
        let (row, own) = (warp.lane / 4, warp.lane % 4);
        for n in 0..N {
            let mut words: [u32; 4] = core::array::from_fn(|j| {
                let of = &acc.0[0][n][j / 2];
                // SAFETY: `Warp` stands for 32 converged lanes.
                unsafe { movmatrix_trans(E::pack(of[j % 2 * 2], of[j % 2 * 2 + 1])) }
            });
            transpose(&mut words, own, warp);
            let row = row0 + n as u32 * 16 + own / 2 * 8 + row;
            let chunk = column * 2 + own % 2;
            if row < self.rows && chunk < self.chunks {
                let within = row as u64 * self.row_bytes as u64 + (chunk * layout::CHUNK) as u64;
                // SAFETY: row and chunk exist, and base and stride are multiples of 16, as `GlobalRows`
                // promises.
                unsafe { st_global_v4_b32(self.base.wrapping_add(within), words) }
            }
        }
    }
}

/// Transposes the 4x4 words of a quad: lane `own` gets word `own` of each lane.
#[inline(always)]
fn transpose(words: &mut [u32; 4], own: u32, warp: Warp) {
    let mut swap = |low: usize, bit: usize| {
        let is_upper = own & bit as u32 != 0;
        let (a, b) = (words[low], words[low + bit]);
        let got = warp.shuffle(if is_upper { a } else { b }, warp.lane ^ bit as u32);
        words[low] = if is_upper { got } else { a };
        words[low + bit] = if is_upper { b } else { got };
    };
    swap(0, 1);
    swap(2, 1);
    swap(0, 2);
    swap(1, 2);
}
