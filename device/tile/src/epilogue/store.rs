//! Stores of registers to global memory.
use crate::copy::Walk;
use crate::exchange::Scratch;
use crate::global::{GlobalRows, GlobalVec, OwnChunk};
use crate::group::{Capability, SplitGroup, ThreadGroup, WarpRows};
use crate::mma::{Acc, Mma, RowVec};
use crate::shared::{Place, SharedLayout, SharedTile};
use crate::{Block, Ended, Warp, layout};
use contract::{Element, Kernel};
use core::marker::PhantomData;
use cuda_std::memory::{
    ld_global_b32, ld_global_nc_b32_if, ld_shared_v4_b32, st_global_b32, st_global_b32_if, st_global_v4_b32,
    st_shared_b32,
};

/// The shared memory of `R x C` base tiles of `E` whose content is no longer needed.
pub struct Spent<E, const R: usize, const C: usize> {
    base: u32,
    element: PhantomData<E>,
}

impl<E: Mma, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// The shared memory of this tile, whose content is given up.
    #[inline(always)]
    pub fn spent(self) -> Spent<E, R, C> {
        Spent { base: self.base, element: PhantomData }
    }
}

impl<P: Place> Scratch<P> {
    /// The part of this shared memory for this warp's split group. Each split group gets one tile.
    #[inline(always)]
    pub fn spent<E: Mma, const R: usize, const C: usize, const OF: usize>(
        self,
        group: SplitGroup<OF>,
    ) -> Spent<E, R, C> {
        const { assert!(OF * SharedTile::<E, R, C>::BYTES <= P::BYTES, "this memory is too small") }
        // Only TMA and `wgmma`, which do not read this memory, need whole panels at multiples of 1024.
        const { assert!(P::ALIGN.is_multiple_of(128), "misaligned for a tile") }
        Spent { base: self.base + group.index() * SharedTile::<E, R, C>::BYTES as u32, element: PhantomData }
    }
}

impl<E: Element, const R: usize, const C: usize> Spent<E, R, C> {
    /// The place of the first columns, which are whole panels.
    #[inline(always)]
    pub fn first_columns<const P: usize>(self) -> Spent<E, R, P> {
        const { SharedTile::<E, R, C>::has_first_columns::<P>() }
        Spent { base: self.base, element: PhantomData }
    }
}

impl<E: Mma, const R: usize, const C: usize> Spent<E, R, C> {
    /// The place of the split group's share of the columns, which are whole panels. A barrier proves that
    /// every warp has given up the tile.
    #[inline(always)]
    pub fn columns<K: Kernel, const P: usize, const OF: usize>(
        self,
        group: SplitGroup<OF>,
        block: &mut Block<K>,
    ) -> Spent<E, R, P> {
        const { assert!(P * OF == C, "the shares must cover the columns") }
        const { SharedTile::<E, R, C>::has_first_columns::<P>() }
        if OF > 1 {
            block.sync();
        }
        Spent { base: self.base + group.index() * SharedTile::<E, R, P>::BYTES as u32, element: PhantomData }
    }

    /// Rounds `acc` and stores it to rows `row0..` of `out`. The warp first writes its own rows of this
    /// shared memory, so that each lane then stores 16 contiguous bytes of a row.
    #[inline(always)]
    pub fn store_through<const M: usize>(
        self,
        acc: &Acc<M, C>,
        out: &GlobalRows<E, C>,
        row0: u32,
        rows: WarpRows<R, M>,
    ) {
        let (warp, first) = (rows.warp(), rows.first());
        let chunks = SharedTile::<E, R, C>::ROW_CHUNKS;
        let base = self.base + SharedTile::<E, R, C>::offset(first, 0);
        warp.sync();
        acc.each_pair(warp, |row, column, lo, hi| {
            let at = base + SharedTile::<E, R, C>::offset(row, column / 8) + column % 8 * 2;
            // SAFETY: the warp writes its own rows of shared memory that this call owns; barriers before and
            // after make the other lanes wait.
            unsafe { st_shared_b32(at, E::pack(lo, hi)) }
        });
        warp.sync();
        for i in 0..M as u32 * 16 * chunks / 32 {
            let (row, chunk) = ((i * 32 + warp.lane) / chunks, (i * 32 + warp.lane) % chunks);
            // SAFETY: the warp reads its own rows, which all lanes have written before the barrier.
            let x = unsafe { ld_shared_v4_b32(base + SharedTile::<E, R, C>::offset(row, chunk)) };
            out.store_chunk(row0 + first + row, chunk, x);
        }
    }
}

impl<E: Mma, const C: usize> GlobalRows<E, C> {
    /// Writes zeros to those of the rows `row0..row0 + 16 * R` that exist. All threads of the group take
    /// part.
    #[inline(always)]
    pub fn clear<W: ThreadGroup, const R: usize>(&self, row0: u32, group: &W) {
        Walk::<E, R, C, W>::each_chunk(group, |row, chunk| self.store_chunk(row0 + row, chunk, [0; 4]));
    }

    /// Rounds `x` and stores it to the thread's own chunk, if the chunk exists.
    #[inline(always)]
    pub fn store_own(&self, own: &OwnChunk<C>, x: [f32; 8]) {
        let [a, b, c, d, e, f, g, h] = x;
        let x = [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)];
        self.store_chunk(own.row(), own.chunk(), x);
    }

    #[inline(always)]
    fn store_chunk(&self, row: u32, chunk: u32, x: [u32; 4]) {
        if row < self.rows && chunk < self.chunks {
            let at =
                self.base.wrapping_add(row as u64 * self.row_bytes as u64 + (chunk * layout::CHUNK) as u64);
            // SAFETY: the row and the chunk exist, and base and stride are multiples of 16 bytes, as
            // `GlobalRows` promises.
            unsafe { st_global_v4_b32(at, x) }
        }
    }
}

impl GlobalVec {
    /// Stores the warp's values to those of the rows `row0..` that exist, if the caller wants the values.
    #[inline(always)]
    pub fn store<const M: usize>(&self, values: &RowVec<M>, row0: u32, warp: Warp) {
        if self.base == 0 {
            return;
        }
        for m in 0..M {
            for r in 0..2 {
                let [in_tile, column] = layout::acc_element(warp.lane, 2 * r);
                // Four lanes hold the same row, and one of them stores.
                if column == 0 {
                    self.store_one(row0 + m as u32 * 16 + in_tile, values.0[m][r as usize]);
                }
            }
        }
    }

    /// [`GlobalVec::store`] with predicates instead of branches, so that the warp stays converged.
    #[inline(always)]
    pub fn store_together<const M: usize>(&self, values: &RowVec<M>, row0: u32, warp: Warp) {
        for m in 0..M {
            for r in 0..2 {
                let [in_tile, column] = layout::acc_element(warp.lane, 2 * r);
                let row = row0 + m as u32 * 16 + in_tile;
                let at = self.base.wrapping_add(row as u64 * 4);
                let wanted = self.base != 0 && column == 0 && row < self.rows;
                // SAFETY: if the value is wanted, the row exists. The base is a multiple of 4, as `Vector`
                // promises.
                unsafe { st_global_b32_if(at, values.0[m][r as usize].to_bits(), wanted) }
            }
        }
    }

    /// The values of the warp's rows, from row `row0` on: 0 for rows that do not exist, or without a vector.
    /// No thread may write the vector while the kernel runs.
    #[inline(always)]
    pub fn load_together(&self, row0: u32, warp: Warp) -> RowVec<1> {
        let row = |r: u32| row0 + layout::acc_element(warp.lane, 2 * r)[0];
        let load = |row: u32| {
            let exists = self.base != 0 && row < self.rows;
            // SAFETY: the load happens only if the row exists. The base is a multiple of 4, as `Vector`
            // promises.
            unsafe { ld_global_nc_b32_if(self.base.wrapping_add(row as u64 * 4), exists) }
        };
        RowVec([[0, 1].map(|r| f32::from_bits(load(row(r))))])
    }

    /// Stores `x` to those of the rows `row0..row0 + rows` that exist, if the caller wants the values. All
    /// threads of the group take part.
    #[inline(always)]
    pub fn fill<W: ThreadGroup>(&self, x: f32, row0: u32, rows: u32, group: &W) {
        if self.base == 0 {
            return;
        }
        for i in 0..rows.div_ceil(W::THREADS) {
            let row = i * W::THREADS + group.member();
            if row < rows {
                self.store_one(row0 + row, x);
            }
        }
    }

    /// Stores the value of one row, if the row exists and the caller wants the values.
    #[inline(always)]
    pub fn store_row(&self, row: u32, x: f32, _: &impl Capability) {
        if self.base != 0 {
            self.store_one(row, x);
        }
    }

    /// The value of row `row`; `missing` if the row does not exist.
    #[inline(always)]
    pub fn load_row(&self, row: u32, missing: f32, _: &impl Capability) -> f32 {
        if self.base == 0 || row >= self.rows {
            return missing;
        }
        // SAFETY: the row exists, and the base is a multiple of 4, as `Vector` and `Partials` promise.
        f32::from_bits(unsafe { ld_global_b32(self.base.wrapping_add(row as u64 * 4)) })
    }

    /// The value of the thread's own row, which a kernel before left; `missing` if the row does not exist.
    #[inline(always)]
    pub fn load_own<const C: usize>(&self, own: &OwnChunk<C>, missing: f32, _: Ended) -> f32 {
        self.load_row(own.row(), missing, own)
    }

    /// Stores the value of the thread's own row, if the row exists and the caller wants the values. Only the
    /// thread that has the row's first chunk stores.
    #[inline(always)]
    pub fn store_own<const C: usize>(&self, own: &OwnChunk<C>, x: f32) {
        if self.base != 0 && own.chunk() == 0 {
            self.store_one(own.row(), x);
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
    /// Calls `f(row, column, x, y)` for each pair of neighbouring values `x` and `y` in a row. Rows and
    /// columns count from the warp's first row and column.
    #[inline(always)]
    pub(crate) fn each_pair(&self, warp: Warp, f: impl Fn(u32, u32, f32, f32)) {
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
