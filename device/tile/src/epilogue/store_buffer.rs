//! The TMA store buffer: warpgroups write accumulators to swizzled shared memory, and TMA stores them.
use crate::group::Warpgroup;
use crate::mma::{Acc, Mma};
use crate::pipeline::{Specialized, StageGuard};
use crate::shared::{Place, SharedLayout, SharedTile, SharedTiles};
use crate::tma::{StoreMapKind, TmaTensor};
use crate::{Warp, layout};
use contract::Element;
use core::marker::PhantomData;
use cuda_std::ldmatrix::stmatrix_x4;
use cuda_std::math::opaque;
use cuda_std::tma;

/// Shared memory for a tile that TMA stores, with 64 rows for each of `W` warpgroups.
pub struct StoreBuffer<E, const C: usize, const W: usize> {
    base: u32,
    element: PhantomData<E>,
}

// SAFETY: the buffer consists of tiles, one after the other.
unsafe impl<E: Element, const C: usize, const W: usize> Place for StoreBuffer<E, C, W> {
    const BYTES: usize = W * SharedTile::<E, 4, C>::BYTES;
    const ALIGN: usize = SharedTile::<E, 4, C>::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        StoreBuffer { base, element: PhantomData }
    }
}

impl<E: Element, const C: usize, const W: usize> Specialized for StoreBuffer<E, C, W> {
    type Producer = ();
    type Converter = ();
    type Consumer = Self;
    const PRODUCERS: u32 = 1;
    #[inline(always)]
    unsafe fn init(&self, _: u32) {}
    #[inline(always)]
    unsafe fn producer(self, _: Warp) {}
    #[inline(always)]
    unsafe fn converter(self, _: Warp) {}
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> Self {
        self
    }
}

impl<E: Mma, const C: usize, const W: usize> StoreBuffer<E, C, W> {
    /// Waits until TMA has read the previous tile, then stores the warpgroup's rows. `at` are the coordinates
    /// of the tile's first row. `acc` has the first `P` of the tile's base tiles of columns; the others
    /// become 0. TMA does not store rows and columns that do not exist.
    #[inline(always)]
    pub fn store<M: StoreMapKind, const P: usize>(
        &mut self,
        acc: &Acc<1, P>,
        to: &TmaTensor<E, 4, C, M>,
        at: M::At,
        group: &mut Warpgroup<W>,
    ) {
        let tile = self.base + group.index * SharedTile::<E, 4, C>::BYTES as u32;
        tma::wait_group_read::<0>();
        let mut all = Acc::<1, C>::zero();
        all.0[0][..P].copy_from_slice(&acc.0[0]);
        // SAFETY: this is the warpgroup's own tile, which TMA has read.
        unsafe {
            store(tile, group.warp.lane, &all, to, |group| (0, M::down(at, group.first_of_group())), group)
        }
    }
}

impl<E: Mma, const C: usize, const W: usize> StageGuard<'_, SharedTiles<E, 4, C, W>> {
    /// Stores a tile of `P` base tiles of columns through the shared memory of the guarded stage's first
    /// columns. The stage loses its content.
    #[inline(always)]
    pub fn store_through<M: StoreMapKind, const P: usize>(
        self,
        acc: &Acc<1, P>,
        to: &TmaTensor<E, 4, P, M>,
        at: M::At,
        group: &mut Warpgroup<W>,
    ) {
        self.store_columns_through(acc, to, 0, at, group)
    }

    /// [`StageGuard::store_through`] to the columns from `column` on.
    #[inline(always)]
    pub fn store_columns_through<M: StoreMapKind, const P: usize>(
        self,
        acc: &Acc<1, P>,
        to: &TmaTensor<E, 4, P, M>,
        column: u32,
        at: M::At,
        group: &mut Warpgroup<W>,
    ) {
        const { SharedTile::<E, 4, C>::has_first_columns::<P>() }
        // The addresses are the same for all tiles, but kernels that store this way have no registers to keep
        // them.
        let lane = opaque(group.warp.lane);
        // SAFETY: this is the warpgroup's own tile. The products that read it have ended: they borrowed the
        // guard, which this call consumes.
        unsafe {
            store(
                self.address(group.index),
                lane,
                acc,
                to,
                |group| (column, M::down(at, group.first_of_group())),
                group,
            )
        }
        // The guard then releases the stage, and the producer refills it.
        tma::wait_group_read::<0>();
    }
}

impl<E: Mma, const D: usize, const T: usize> StageGuard<'_, SharedTiles<E, 4, D, T>> {
    /// Stores the warpgroup's own tile or, of the stage's only tile, its own `P` base tiles of columns,
    /// through the same part of the guarded stage. The stage loses its content. Every consumer warpgroup must
    /// call this function.
    #[inline(always)]
    pub fn store_part_through<M: StoreMapKind, const P: usize, const W: usize>(
        self,
        acc: &Acc<1, P>,
        to: &TmaTensor<E, 4, D, M>,
        at: M::At,
        group: &mut Warpgroup<W>,
    ) {
        const { assert!(T == W && P == D || T == 1 && P * W <= D, "warpgroups share rows, or columns") }
        let lane = opaque(group.warp.lane);
        let tile = match T {
            1 => {
                // The other warpgroups may still read these columns.
                group.wait_for_all();
                let bytes = SharedTile::<E, 4, P>::BYTES as u32;
                self.address(0) + group.index * bytes
            }
            _ => self.address(group.index),
        };
        let of = |group: &Warpgroup<W>| match T {
            1 => (group.index * P as u32 * 16, at),
            _ => (0, M::down(at, group.first_of_group())),
        };
        // SAFETY: this is the warpgroup's own part of the stage. The products that read it have ended, in all
        // warpgroups that may read it.
        unsafe { store(tile, lane, acc, to, of, group) }
        // The guard then releases the stage, and the producer refills it.
        tma::wait_group_read::<0>();
    }
}

/// Stores the warpgroup's part of `to` through `tile`. `lane` is the lane of this thread, and `of` returns
/// the first column and the coordinates of the first row.
///
/// # Safety
/// - `tile` is the shared address of the warpgroup's own tile. No copy and no product still reads the
///   tile.
#[inline(always)]
unsafe fn store<E: Mma, M: StoreMapKind, const C: usize, const D: usize, const W: usize>(
    tile: u32,
    lane: u32,
    acc: &Acc<1, C>,
    to: &TmaTensor<E, 4, D, M>,
    of: impl FnOnce(&Warpgroup<W>) -> (u32, M::At),
    group: &mut Warpgroup<W>,
) {
    group.sync();
    let first = group.warp.index % 4 * 16;
    let [in_tile, chunk] = layout::columns_first(lane);
    for c in 0..C {
        let to = tile + SharedTile::<E, 4, C>::offset(first + in_tile, 2 * c as u32 + chunk);
        let [a, b] = &acc.0[0][c];
        let words = [E::pack(a[0], a[1]), E::pack(a[2], a[3]), E::pack(b[0], b[1]), E::pack(b[2], b[3])];
        // SAFETY: the warp writes its own rows of the tile, which the whole warpgroup no longer needs;
        // `Warpgroup` stands for converged warps.
        unsafe { stmatrix_x4(to, words) }
    }
    tma::fence_proxy_async();
    group.sync();
    let (column, at) = of(group);
    // SAFETY: the tile is written and fenced, and a barrier has passed; the next writer waits for the store.
    unsafe { to.store_if::<C>(tile, column, at, group.elected()) }
}
