//! Execution: warps of a block, block by block.

mod atomic;
mod barrier;
mod block;
mod call;
mod collective;
mod copies;
mod finding;
mod mbarrier;
mod memory;
mod order;
mod step;
mod trace;
mod warp;

use std::sync::atomic::AtomicU64;

pub(crate) use block::{Block, Finished};
pub(crate) use order::Released;

use crate::{Module, Options, Profile, decode::Program, memory::GlobalMemory};

/// What all blocks of a launch share.
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
    /// Instructions of all blocks so far.
    pub spent: &'a AtomicU64,
    pub released: &'a Released,
}

impl Context<'_> {
    /// Number of a block within the grid.
    pub fn linear(&self, block: [u32; 3]) -> u64 {
        let [x, y, _] = self.grid.map(u64::from);
        u64::from(block[0]) + x * (u64::from(block[1]) + y * u64::from(block[2]))
    }
}
