//! From registers to global memory.
use crate::{Acc, Crew, GlobalRows, GlobalVec, Mma, RowVec, SharedTile, Walk, Warp, layout};
use cuda_std::memory::{ld_shared_v4_b32, st_global_b32, st_global_v4_b32, st_shared_b32};

impl<E: Mma, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// Rounds `acc` and stores it to rows `row0..` of `out`, through the rows of this tile that belong to the warp, so that global stores are
    /// whole rows of 16 bytes a lane. Consumes the tile: its contents are gone.
    #[inline(always)]
    pub fn store_through<const W: usize>(self, acc: &Acc<W, C>, out: &GlobalRows<E, C>, row0: u32, warp: Warp) {
        let first = warp.index * W as u32 * 16;
        let rows = self.base + layout::offset(Self::ROW_CHUNKS, first, 0);
        warp.sync();
        acc.each_pair(warp, |row, column, lo, hi| {
            let at = rows + layout::offset(Self::ROW_CHUNKS, row, column / 8) + column % 8 * 2;
            // SAFETY: the warp's own rows of a tile that this call owns; the other lanes wait at the barriers around.
            unsafe { st_shared_b32(at, E::pack(lo, hi)) }
        });
        warp.sync();
        for i in 0..W as u32 * 16 * Self::ROW_CHUNKS / 32 {
            let (row, chunk) = ((i * 32 + warp.lane) / Self::ROW_CHUNKS, (i * 32 + warp.lane) % Self::ROW_CHUNKS);
            // SAFETY: as above.
            let x = unsafe { ld_shared_v4_b32(rows + layout::offset(Self::ROW_CHUNKS, row, chunk)) };
            out.store_chunk(row0 + first + row, chunk, x);
        }
    }
}

impl<E: Mma, const C: usize> GlobalRows<E, C> {
    /// Makes rows `row0..row0 + 16 * R` zero, as far as they exist. The whole crew takes part.
    #[inline(always)]
    pub fn clear<W: Crew, const R: usize>(&self, row0: u32, crew: &W) {
        let group = const { Walk::<E, R, C>::group(W::THREADS) };
        let (row, chunk) = Walk::<E, R, C>::place(crew);
        for i in 0..const { Walk::<E, R, C>::groups(W::THREADS) } {
            for panel in 0..Walk::<E, R, C>::PANELS {
                if i * group + row < R as u32 * 16 {
                    self.store_chunk(row0 + i * group + row, panel * Walk::<E, R, C>::ACROSS + chunk, [0; 4]);
                }
            }
        }
    }

    #[inline(always)]
    fn store_chunk(&self, row: u32, chunk: u32, x: [u32; 4]) {
        if row < self.rows && chunk < self.chunks {
            let at = self.base.wrapping_add(row as u64 * self.row_bytes as u64 + (chunk * layout::CHUNK) as u64);
            // SAFETY: the row and the chunk exist, and base and stride are multiples of 16 bytes, as `GlobalRows` promises.
            unsafe { st_global_v4_b32(at, x) }
        }
    }
}

impl GlobalVec {
    /// Stores the warp's values to `row0..`, as far as those rows exist and the vector is wanted.
    #[inline(always)]
    pub fn store<const M: usize>(&self, values: &RowVec<M>, row0: u32, warp: Warp) {
        if self.base == 0 {
            return;
        }
        for m in 0..M {
            for r in 0..2 {
                let [in_tile, column] = layout::acc_element(warp.lane, 2 * r);
                // Four lanes hold each row.
                if column == 0 {
                    self.store_one(row0 + m as u32 * 16 + in_tile, values.0[m][r as usize]);
                }
            }
        }
    }

    /// Stores `x` to rows `row0..row0 + rows`, as far as they exist and the vector is wanted. The whole crew takes part.
    #[inline(always)]
    pub fn fill<W: Crew>(&self, x: f32, row0: u32, rows: u32, crew: &W) {
        if self.base == 0 {
            return;
        }
        for i in 0..rows.div_ceil(W::THREADS) {
            let row = i * W::THREADS + crew.member();
            if row < rows {
                self.store_one(row0 + row, x);
            }
        }
    }

    #[inline(always)]
    fn store_one(&self, row: u32, x: f32) {
        if row < self.rows {
            // SAFETY: the row exists, and the base is a multiple of 4, as `Vector` promises.
            unsafe { st_global_b32(self.base.wrapping_add(row as u64 * 4), x.to_bits()) }
        }
    }
}

impl<const M: usize, const N: usize> Acc<M, N> {
    /// `f(row, column, two neighbouring values)`, rows and columns counted from the warp's first.
    #[inline(always)]
    fn each_pair(&self, warp: Warp, f: impl Fn(u32, u32, f32, f32)) {
        for m in 0..M {
            for n in 0..N {
                for h in 0..2 {
                    for r in 0..2 {
                        let [row, column] = layout::acc_element(warp.lane, 2 * r as u32);
                        let t = &self.0[m][n][h];
                        f(m as u32 * 16 + row, (n * 16 + h * 8) as u32 + column, t[2 * r], t[2 * r + 1])
                    }
                }
            }
        }
    }
}
