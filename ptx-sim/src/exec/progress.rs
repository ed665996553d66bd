//! Progress of a launch, and detection of launches without progress.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::Options;

/// Progress of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of warp instructions that were executed.
    pub instructions: u64,
    /// Number of blocks that have ended.
    pub ended: u64,
    /// Number of blocks of the grid.
    pub blocks: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { instructions, ended, blocks } = self;
        write!(f, "{ended} of {blocks} blocks, {} million warp instructions", instructions / 1_000_000)
    }
}

/// A function that receives progress: see [`crate::Gpu::watch`].
pub(crate) type Watcher = dyn Fn(Progress) + Send + Sync;

/// Number of instructions between two calls of the watcher.
const STEP: u64 = 1 << 24;

/// The counters of one launch.
pub(crate) struct Counter<'a> {
    spent: AtomicU64,
    /// Number of instructions at the last change.
    moved: AtomicU64,
    ended: AtomicU64,
    blocks: u64,
    watcher: Option<&'a Watcher>,
}

impl<'a> Counter<'a> {
    pub fn new(grid: [u32; 3], watcher: Option<&'a Watcher>) -> Counter<'a> {
        let blocks = grid.iter().map(|&n| u64::from(n)).product();
        let [spent, moved, ended] = [const { AtomicU64::new(0) }; 3];
        Counter { spent, moved, ended, blocks, watcher }
    }

    pub fn ended(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// Number of instructions since the last change.
    pub fn idle(&self) -> u64 {
        self.spent.load(Relaxed).saturating_sub(self.moved.load(Relaxed))
    }

    /// Adds `new` instructions. `moved` says whether waiting warps may depend on the effects of these
    /// instructions. Returns the reason if the launch must end.
    pub fn spend(&self, new: u64, moved: bool, options: &Options) -> Option<String> {
        let total = self.spent.fetch_add(new, Relaxed) + new;
        let last =
            if moved { self.moved.fetch_max(total, Relaxed).max(total) } else { self.moved.load(Relaxed) };
        let Counter { blocks, watcher, .. } = self;
        let ended = self.ended.load(Relaxed);
        if let Some(watcher) = watcher
            && total / STEP != (total - new) / STEP
        {
            watcher(Progress { instructions: total, ended, blocks: *blocks });
        }
        let Options { budget, patience, .. } = options;
        let why = if total > *budget {
            format!("the launch has executed more than its `budget` of {budget} warp instructions")
        } else if total.saturating_sub(last) > *patience {
            format!("nothing has changed for `patience`, {patience} warp instructions")
        } else {
            return None;
        };
        Some(format!("{why}; {ended} of {blocks} blocks have ended"))
    }
}
