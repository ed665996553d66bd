//! Threads that act together: thread groups, warpgroups, and each warp's rows of a tile.
use crate::{Block, Warp};
use contract::Kernel;

mod warpgroup;

pub(crate) use warpgroup::PingPong;
pub use warpgroup::{Refillers, Team, Warpgroup};

/// Traits that only this crate can implement or call.
pub(crate) mod sealed {
    /// Prevents other crates from implementing the crate's traits.
    pub trait Sealed {}

    /// A group that has a barrier.
    pub trait Synchronize {
        /// Executes a barrier. After the barrier, every thread of the group sees all copies and writes that
        /// any thread of the group made before the barrier.
        fn sync_group(&mut self);
    }
}

/// A value that only a running kernel has, and that no mask or score receives: a group of threads, or this
/// thread's share of work. Whoever reads or writes memory without clamping each index takes a capability.
pub trait Capability: sealed::Sealed {}

/// Threads that copy a tile, wait for it and read it together: a block, or a warp.
pub trait ThreadGroup: Capability + sealed::Synchronize {
    /// The number of threads in the group.
    const THREADS: u32;
    /// This thread's index in the group.
    fn member(&self) -> u32;
    /// The warp of this thread. All lanes of this warp are in the group.
    fn warp(&self) -> Warp;
}

impl<K> sealed::Sealed for Block<K> {}
impl<K> Capability for Block<K> {}
impl<K: Kernel> sealed::Synchronize for Block<K> {
    #[inline(always)]
    fn sync_group(&mut self) {
        self.sync()
    }
}
impl<K: Kernel> ThreadGroup for Block<K> {
    const THREADS: u32 = K::THREADS;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.thread
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        self.warp()
    }
}

impl sealed::Sealed for Warp {}
impl Capability for Warp {}
impl sealed::Synchronize for Warp {
    #[inline(always)]
    fn sync_group(&mut self) {
        self.sync()
    }
}
impl ThreadGroup for Warp {
    const THREADS: u32 = 32;
    #[inline(always)]
    fn member(&self) -> u32 {
        self.lane
    }
    #[inline(always)]
    fn warp(&self) -> Warp {
        *self
    }
}

/// The rows of a tile that one warp has: `M` of the tile's `R` row tiles.
#[derive(Clone, Copy)]
pub struct WarpRows<const R: usize, const M: usize> {
    warp: Warp,
    /// Index of the warp among the warps that share the tile's rows.
    index: u32,
}

impl<const R: usize, const M: usize> WarpRows<R, M> {
    /// # Safety
    /// - `index` is below `R / M` and differs between the warps of a split group.
    #[inline(always)]
    pub(crate) unsafe fn new(warp: Warp, index: u32) -> Self {
        WarpRows { warp, index }
    }

    /// The warp.
    #[inline(always)]
    pub fn warp(self) -> Warp {
        self.warp
    }

    /// The warp's index in its split group.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// The warp's first row in the tile.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.index * M as u32 * 16
    }
}

/// One of `OF` split groups of a block. The warps of a group share the rows of a tile. All groups have the
/// same rows, but each group reads a different tile of a stage.
#[derive(Clone, Copy)]
pub struct SplitGroup<const OF: usize> {
    index: u32,
}

impl SplitGroup<1> {
    /// The only split group of a block that is not split.
    pub const ONLY: SplitGroup<1> = SplitGroup { index: 0 };
}

impl<const OF: usize> SplitGroup<OF> {
    /// The other groups, in ascending order from this one on, cyclically.
    #[inline(always)]
    pub(crate) fn others(self) -> impl Iterator<Item = Self> {
        let next = move |i: u32| self.index + i - if self.index + i < OF as u32 { 0 } else { OF as u32 };
        (1..OF as u32).map(move |i| SplitGroup { index: next(i) })
    }

    /// The group's index, below `OF`.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.index
    }
}

impl<K: Kernel> Block<K> {
    /// Divides the block's warps into `OF` split groups. Each group shares a tile's `R` row tiles, `M` per
    /// warp. Returns this warp's rows and its group.
    #[inline(always)]
    pub fn split_groups<const R: usize, const M: usize, const OF: usize>(
        &self,
    ) -> (WarpRows<R, M>, SplitGroup<OF>) {
        const {
            assert!(
                R.is_multiple_of(M) && K::THREADS as usize == R / M * OF * 32,
                "the split groups' warps must share the rows, and make up the block"
            )
        }
        let warp = self.warp();
        let size = (R / M) as u32;
        // If there is only one group, its index is a constant.
        let (index, group) = if OF == 1 { (warp.index, 0) } else { (warp.index % size, warp.index / size) };
        // SAFETY: `index` is below the number of warps that share the rows: it is a remainder by that number,
        // or the index of one of these warps.
        (unsafe { WarpRows::new(warp, index) }, SplitGroup { index: group })
    }
}
