//! Executes a launch, block by block, and the warps of each block.

mod atomic;
mod barrier;
mod begin;
mod block;
mod bulk;
mod call;
mod check;
mod cluster;
mod collective;
mod copies;
mod dependent;
mod effects;
mod finding;
mod grid;
mod knowledge;
mod lanes;
mod mbarrier;
mod memory;
mod order;
mod progress;
mod proxy;
mod schedule;
mod standing;
mod step;
mod touched;
mod trace;
mod warp;
mod warpgroup;
mod wgmma;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use block::Block;
pub(crate) use grid::run;
pub(crate) use order::Released;
pub use progress::Progress;
pub(crate) use progress::{Counter, Watcher};

use crate::{Module, Options, Profile, decode::Program, memory::GlobalMemory, shadow::Readers};

/// State that all blocks of a launch share.
pub(crate) struct Context<'a> {
    pub module: &'a Module,
    pub program: &'a Program,
    pub memory: &'a GlobalMemory,
    pub options: &'a Options,
    pub profile: &'a Profile,
    pub kernel: &'a str,
    pub params: &'a [u8],
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub threads: u32,
    pub warps: usize,
    pub dynamic_shared: u32,
    /// Number of 32-bit registers of a thread when the launch begins.
    pub registers: u32,
    /// Alignment of the parameters in memory.
    pub param_align: usize,
    pub progress: &'a Counter<'a>,
    pub released: &'a Released,
    /// Whether the launch may begin before the launch before it has ended.
    pub dependent: bool,
}

impl Context<'_> {
    /// The kinds of reads of device memory that the shadow must store.
    pub fn readers(&self) -> Readers {
        if self.program.blocks_communicate { Readers::All } else { Readers::Last }
    }

    /// The index of a block within the grid.
    pub fn linear(&self, block: [u32; 3]) -> u64 {
        let [x, y, _] = self.grid.map(u64::from);
        u64::from(block[0]) + x * (u64::from(block[1]) + y * u64::from(block[2]))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
