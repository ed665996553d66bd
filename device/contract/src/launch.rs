//! The contract of a launch, by value: what a compiled kernel is to whoever builds, loads or launches it.
use crate::{Kernel, Target};

/// What a compiled kernel is. [`Contract::of`] takes it from the kernel's type; what builds the kernel stamps
/// it into the PTX, so that ptxas may count on it, and what loads and launches it goes by the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Contract {
    /// Name of the entry in the PTX.
    pub symbol: &'static str,
    /// GPUs that can run it.
    pub target: Target,
    /// Threads of a block, exactly, along x: stamped as `.reqntid`.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub smem_bytes: u32,
    /// Blocks that one SM must be able to hold: stamped as `.minnctapersm`, which bounds the registers. 0
    /// leaves it out.
    pub min_blocks_per_sm: u32,
    /// What the address of the parameter is a multiple of: stamped as its `.align`. 0 leaves rustc's.
    pub param_align: u32,
    /// What ptxas may spill; `None` allows nothing.
    pub spills: Option<SpillAllowance>,
}

/// How much a kernel may spill outside of loops, on any target, and why that is the better choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpillAllowance {
    /// Most bytes of spill stores, as ptxas reports them.
    pub stores: u32,
    /// Most bytes of spill loads, as ptxas reports them.
    pub loads: u32,
    /// The measurement that earned it.
    pub reason: &'static str,
}

impl Contract {
    /// The contract of kernel `K`, compiled as `symbol`.
    pub const fn of<K: Kernel>(symbol: &'static str) -> Self {
        const { assert!(K::THREADS >= 1 && K::THREADS <= 1024, "a block has 1 to 1024 threads") }
        const { assert!(K::SMEM_BYTES <= u32::MAX as usize, "no block has 4 GiB of shared memory") }
        Self::new(symbol, K::THREADS)
            .target(K::TARGET)
            .smem_bytes(K::SMEM_BYTES as u32)
            .min_blocks_per_sm(K::BLOCKS_PER_SM)
            .param_align(K::PARAM_ALIGN)
    }

    /// The contract of a kernel that no type describes: for every GPU since sm_80, without dynamic shared
    /// memory, a bound on registers or an allowance.
    pub const fn new(symbol: &'static str, threads: u32) -> Self {
        let target = Target::From(80);
        Contract {
            symbol,
            target,
            threads,
            smem_bytes: 0,
            min_blocks_per_sm: 0,
            param_align: 0,
            spills: None,
        }
    }

    /// The same for other GPUs.
    #[must_use]
    pub const fn target(self, target: Target) -> Self {
        Contract { target, ..self }
    }

    /// The same with so much dynamic shared memory of a block.
    #[must_use]
    pub const fn smem_bytes(self, smem_bytes: u32) -> Self {
        Contract { smem_bytes, ..self }
    }

    /// The same with so many blocks that one SM must be able to hold.
    #[must_use]
    pub const fn min_blocks_per_sm(self, min_blocks_per_sm: u32) -> Self {
        Contract { min_blocks_per_sm, ..self }
    }

    /// The same with a parameter at a multiple of so many bytes.
    #[must_use]
    pub const fn param_align(self, param_align: u32) -> Self {
        Contract { param_align, ..self }
    }

    /// The same with an allowance of spills.
    #[must_use]
    pub const fn spills(self, allowance: SpillAllowance) -> Self {
        Contract { spills: Some(allowance), ..self }
    }
}
