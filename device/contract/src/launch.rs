//! The launch contract as a value, for code that builds, loads or launches a compiled kernel.
use crate::{Kernel, Target};

/// The contract of a compiled kernel. [`Contract::of`] derives the contract from the kernel's type. The
/// builder writes the contract into the PTX, so that ptxas relies on it. The host loads and launches the
/// kernel with these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Contract {
    /// Name of the entry in the PTX.
    pub symbol: &'static str,
    /// GPUs that can run the kernel.
    pub target: Target,
    /// Exact number of threads per block, along x. The builder writes this number into the PTX as `.reqntid`.
    pub threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub smem_bytes: u32,
    /// Number of blocks that one SM must be able to hold. The builder writes it into the PTX as
    /// `.minnctapersm`, which bounds the registers; 0 omits the directive.
    pub min_blocks_per_sm: u32,
    /// Alignment of the parameter's address in bytes. The builder writes it into the PTX as `.align`; 0 keeps
    /// the alignment that rustc wrote.
    pub param_align: u32,
    /// The permitted spills. `None` permits no spill.
    pub spills: Option<SpillAllowance>,
    /// See [`Contract::is_dependent`]. Only the kernel's type sets it.
    dependent: bool,
}

/// The bytes that a kernel may spill outside of loops, on any target, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpillAllowance {
    /// Largest number of bytes of spill stores, as ptxas reports them.
    pub stores: u32,
    /// Largest number of bytes of spill loads, as ptxas reports them.
    pub loads: u32,
    /// The measurement that justifies the spill.
    pub reason: &'static str,
}

impl Contract {
    /// The contract of kernel `K`, compiled as `symbol`.
    pub const fn of<K: Kernel>(symbol: &'static str) -> Self {
        const { assert!(K::THREADS >= 1 && K::THREADS <= 1024, "a block has 1 to 1024 threads") }
        const { assert!(K::SMEM_BYTES <= u32::MAX as usize, "no block has 4 GiB of shared memory") }
        let contract = Self::new(symbol, K::THREADS)
            .target(K::TARGET)
            .smem_bytes(K::SMEM_BYTES as u32)
            .min_blocks_per_sm(K::BLOCKS_PER_SM)
            .param_align(K::PARAM_ALIGN);
        Contract { dependent: K::START.is_early(), ..contract }
    }

    /// The contract of a kernel that has no contract type. The contract permits every GPU since sm_80, and
    /// has no dynamic shared memory, no register bound and no permitted spills.
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
            dependent: false,
        }
    }

    /// Whether the kernel waits for the kernel before it by itself ([`crate::Dependent`]). The host launches
    /// exactly these kernels with programmatic stream serialization.
    pub const fn is_dependent(&self) -> bool {
        self.dependent
    }

    /// Returns this contract for other GPUs.
    #[must_use]
    pub const fn target(self, target: Target) -> Self {
        Contract { target, ..self }
    }

    /// Returns this contract with `bytes` of dynamic shared memory per block.
    #[must_use]
    pub const fn smem_bytes(self, smem_bytes: u32) -> Self {
        Contract { smem_bytes, ..self }
    }

    /// Returns this contract with a minimum number of blocks per SM.
    #[must_use]
    pub const fn min_blocks_per_sm(self, min_blocks_per_sm: u32) -> Self {
        Contract { min_blocks_per_sm, ..self }
    }

    /// Returns this contract with an alignment of the parameter in bytes.
    #[must_use]
    pub const fn param_align(self, param_align: u32) -> Self {
        Contract { param_align, ..self }
    }

    /// Returns this contract with permitted spills.
    #[must_use]
    pub const fn spills(self, allowance: SpillAllowance) -> Self {
        Contract { spills: Some(allowance), ..self }
    }
}
