//! A line of the table.
use crate::{COMBINES, DType, ENTRIES, Grid, Kernel, MaskKind, Path, Schedule};

/// A kernel with a symbol in the PTX: one line of the table.
pub trait Entry: Kernel {
    /// Its line in the table.
    const INFO: EntryInfo;
}

/// What ptxas may spill outside of loops. A spill inside a loop is never allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillAllowance {
    /// Most bytes of spill stores, on any target.
    pub stores: u32,
    /// Most bytes of spill loads, on any target.
    pub loads: u32,
    /// The measurement that earned it.
    pub reason: &'static str,
}

/// A line of the table as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// Name of the entry in the PTX.
    pub symbol: &'static str,
    /// Element type of Q, K, V and O.
    pub dtype: DType,
    /// Largest head dim, in elements. Smaller ones (multiples of 8) run with their missing columns zero.
    pub head_dim: u32,
    /// Which keys a query sees.
    pub mask: MaskKind,
    /// Order of work in the main loop.
    pub schedule: Schedule,
    /// What multiplies tiles.
    pub path: Path,
    /// Which blocks a launch has.
    pub grid: Grid,
    /// Queries of a block.
    pub tile_m: u32,
    /// Keys of a stage.
    pub tile_n: u32,
    /// Key/value stages in shared memory.
    pub stages: u32,
    /// Threads in a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub smem_bytes: u32,
    /// Stamped as `.minnctapersm`.
    pub min_blocks_per_sm: u32,
    /// What ptxas may spill outside of loops.
    pub spills: Option<SpillAllowance>,
}

/// How a kernel is compiled, whatever it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its name in the PTX.
    pub symbol: &'static str,
    /// Threads in a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub smem_bytes: u32,
    /// Stamped as `.minnctapersm`.
    pub min_blocks_per_sm: u32,
    /// What ptxas may spill outside of loops.
    pub spills: Option<SpillAllowance>,
}

impl KernelInfo {
    /// The kernel of configuration `K`, compiled as `symbol`.
    pub const fn of<K: Kernel>(symbol: &'static str) -> Self {
        let (threads, smem_bytes, min_blocks_per_sm) = (K::THREADS, K::SMEM_BYTES as u32, K::BLOCKS_PER_SM);
        KernelInfo { symbol, threads, smem_bytes, min_blocks_per_sm, spills: None }
    }
}

impl From<&EntryInfo> for KernelInfo {
    fn from(entry: &EntryInfo) -> Self {
        let EntryInfo { symbol, threads, smem_bytes, min_blocks_per_sm, spills, .. } = *entry;
        KernelInfo { symbol, threads, smem_bytes, min_blocks_per_sm, spills }
    }
}

/// Everything that is compiled: [`ENTRIES`], then [`COMBINES`].
pub fn kernels() -> impl Iterator<Item = KernelInfo> {
    ENTRIES.iter().map(KernelInfo::from).chain(COMBINES.iter().map(|combine| combine.kernel))
}
