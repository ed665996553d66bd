//! Occupancy: the number of thread blocks of a kernel that an SM can hold, computed from the resources of the
//! kernel and of the SM.

/// The resources of one SM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiprocessor {
    /// The GPU's name.
    pub name: &'static str,
    /// Maximum number of resident warps.
    pub warps: u32,
    /// Maximum number of resident blocks.
    pub blocks: u32,
    /// Shared memory of the SM, in bytes.
    pub smem: u32,
    /// Maximum shared memory of a block, in bytes.
    pub smem_per_block: u32,
}

impl Multiprocessor {
    /// An SM of the A100.
    pub const A100: Self =
        Self { name: "A100", warps: 64, blocks: 32, smem: 164 << 10, smem_per_block: 163 << 10 };
    /// An SM of the L4.
    pub const L4: Self =
        Self { name: "L4", warps: 48, blocks: 24, smem: 100 << 10, smem_per_block: 99 << 10 };
    /// An SM of the H100 or H200.
    pub const H200: Self =
        Self { name: "H200", warps: 64, blocks: 32, smem: 228 << 10, smem_per_block: 227 << 10 };
}

/// Number of registers of an SM.
const REGISTERS: u32 = 64 << 10;
/// Warps get registers in units of this number.
const REGISTER_PORTION: u32 = 256;
/// Blocks get shared memory in units of this number of bytes.
const SMEM_PORTION: u32 = 128;
/// Number of bytes of shared memory that the driver reserves in each block.
const SMEM_RESERVED: u32 = 1 << 10;
/// An SM has four schedulers, each with a quarter of the registers.
const SCHEDULERS: u32 = 4;

/// The numbers of blocks and warps of a kernel that an SM can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Number of resident blocks; 0 if not even one block fits.
    pub blocks: u32,
    /// Number of resident warps.
    pub warps: u32,
    /// The resource that limits the number of blocks: `registers`, `shared memory`, `warps` or `blocks`.
    pub limited_by: &'static str,
}

impl Occupancy {
    /// Computes the occupancy of blocks with `threads` threads, `registers` registers per thread, and `smem`
    /// bytes of static plus dynamic shared memory.
    pub fn new(on: &Multiprocessor, threads: u32, registers: u32, smem: u32) -> Self {
        let warps = threads.div_ceil(32).max(1);
        let per_warp = (registers * 32).next_multiple_of(REGISTER_PORTION).max(REGISTER_PORTION);
        let by_registers = (REGISTERS / SCHEDULERS / per_warp) * SCHEDULERS / warps;
        let by_smem = if smem > on.smem_per_block {
            0
        } else {
            on.smem / (smem + SMEM_RESERVED).next_multiple_of(SMEM_PORTION)
        };
        let limits = [
            (by_registers, "registers"),
            (by_smem, "shared memory"),
            (on.warps / warps, "warps"),
            (on.blocks, "blocks"),
        ];
        let (blocks, limited_by) = limits.into_iter().min_by_key(|l| l.0).unwrap_or_default();
        Self { blocks, warps: blocks * warps, limited_by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kernels() {
        // These figures come from CUDA's occupancy calculator.
        let check = |on, threads, registers, smem, blocks, limited_by| {
            let warps = blocks * threads / 32;
            assert_eq!(
                Occupancy::new(&on, threads, registers, smem),
                Occupancy { blocks, warps, limited_by }
            );
        };
        check(Multiprocessor::A100, 128, 255, 48 << 10, 2, "registers");
        check(Multiprocessor::A100, 128, 128, 80 << 10, 2, "shared memory");
        check(Multiprocessor::L4, 128, 255, 49 << 10, 2, "registers");
        check(Multiprocessor::L4, 128, 64, 99 << 10, 1, "shared memory");
        check(Multiprocessor::L4, 128, 64, 100 << 10, 0, "shared memory");
        check(Multiprocessor::L4, 256, 32, 0, 6, "warps");
        check(Multiprocessor::H200, 32, 16, 0, 32, "blocks");
        check(Multiprocessor::H200, 384, 168, 200 << 10, 1, "registers");
    }
}
