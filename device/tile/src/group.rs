//! Who copies together, how the copies travel, and which rows are whose.
use crate::{Block, Warp};
use contract::Kernel;

mod warpgroup;

pub(crate) use warpgroup::PingPong;
pub use warpgroup::Warpgroup;

/// What only this crate may implement, and what only it may call.
pub(crate) mod sealed {
    /// Closes the crate's traits.
    pub trait Sealed {}

    /// A group that can wait for itself.
    pub trait Synchronize {
        /// What the members copied and wrote before is seen by all of them after.
        fn sync_group(&mut self);
    }
}

/// Threads that copy a tile together, wait together and read it together: the block, or a warp.
pub trait ThreadGroup: sealed::Sealed + sealed::Synchronize {
    /// How many.
    const THREADS: u32;
    /// Which of them this one is.
    fn member(&self) -> u32;
    /// Its warp, all of which belongs to the group.
    fn warp(&self) -> Warp;
}

impl<K> sealed::Sealed for Block<K> {}
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

/// A warp's own rows: `M` row tiles of a tile that has `R`.
#[derive(Clone, Copy)]
pub struct WarpRows<const R: usize, const M: usize> {
    warp: Warp,
    /// Which warp of those that share the tile's rows.
    index: u32,
}

impl<const R: usize, const M: usize> WarpRows<R, M> {
    /// # Safety
    /// - `index` is below `R / M`, another one for each warp of a team.
    #[inline(always)]
    pub(crate) unsafe fn new(warp: Warp, index: u32) -> Self {
        WarpRows { warp, index }
    }

    /// The warp.
    #[inline(always)]
    pub fn warp(self) -> Warp {
        self.warp
    }

    /// Which warp of its team it is.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// Its first row in the tile.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.index * M as u32 * 16
    }
}

/// Which of `OF` teams a warp is in. The warps of a team share a tile's rows; the teams take the same rows,
/// and different tiles of a stage.
#[derive(Clone, Copy)]
pub struct SplitGroup<const OF: usize> {
    index: u32,
}

impl SplitGroup<1> {
    /// All warps.
    pub const ONLY: SplitGroup<1> = SplitGroup { index: 0 };
}

impl<const OF: usize> SplitGroup<OF> {
    /// Its number, below `OF`.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.index
    }
}

impl<K: Kernel> Block<K> {
    /// The block's warps in `OF` teams, each of which shares a tile's `R` row tiles, `M` a warp: this warp's
    /// rows, and its team.
    #[inline(always)]
    pub fn split_groups<const R: usize, const M: usize, const OF: usize>(
        &self,
    ) -> (WarpRows<R, M>, SplitGroup<OF>) {
        const {
            assert!(
                R.is_multiple_of(M) && K::THREADS as usize == R / M * OF * 32,
                "the teams' warps must share the rows, and make up the block"
            )
        }
        let warp = self.warp();
        let size = (R / M) as u32;
        // A constant where there is one team.
        let (index, team) = if OF == 1 { (warp.index, 0) } else { (warp.index % size, warp.index / size) };
        // SAFETY: a remainder by, or one of, as many warps as share the rows.
        (unsafe { WarpRows::new(warp, index) }, SplitGroup { index: team })
    }
}
