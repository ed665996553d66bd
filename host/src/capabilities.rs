//! What a device can hold: all that planning knows of it.
use spec::EntryInfo;
use std::borrow::Cow;

/// A device's limits. [`Capabilities::PROFILES`] has those of common cards, for planning without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, as the driver says it.
    pub name: Cow<'static, str>,
    /// Compute capability, `(major, minor)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Most dynamic shared memory of a block, in bytes, after opting in.
    pub smem_per_block: u32,
    /// Shared memory of an SM, in bytes.
    pub smem_per_sm: u32,
    /// 32-bit registers of an SM.
    pub registers_per_sm: u32,
    /// L2 cache, in bytes.
    pub l2_bytes: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
}

impl Capabilities {
    /// Common cards by name: `l4`, `a100`, `h100`, `h200`, `rtx4090`.
    pub const PROFILES: &[(&'static str, Capabilities)] = &[
        ("l4", card("NVIDIA L4", (8, 9), 58, [99, 100], 48 << 20, 24)),
        ("a100", card("NVIDIA A100-SXM4-80GB", (8, 0), 108, [163, 164], 40 << 20, 80)),
        ("h100", card("NVIDIA H100 80GB HBM3", (9, 0), 132, [227, 228], 50 << 20, 80)),
        ("h200", card("NVIDIA H200", (9, 0), 132, [227, 228], 60 << 20, 141)),
        ("rtx4090", card("NVIDIA GeForce RTX 4090", (8, 9), 128, [99, 100], 72 << 20, 24)),
    ];

    /// A common card by its name in [`Capabilities::PROFILES`].
    pub fn profile(name: &str) -> Option<&'static Capabilities> {
        Self::PROFILES.iter().find(|(known, _)| *known == name).map(|(_, capabilities)| capabilities)
    }

    /// The architecture as a number: 89 for compute capability 8.9.
    pub const fn arch(&self) -> u32 {
        self.compute_capability.0 * 10 + self.compute_capability.1
    }

    /// Threads that an SM holds at once.
    pub const fn threads_per_sm(&self) -> u32 {
        match self.arch() {
            86 | 87 | 89 | 120 | 121 => 1536,
            75 => 1024,
            _ => 2048,
        }
    }

    /// Blocks of an entry that an SM holds at once for certain: as many as its shared memory, its threads and its registers allow, where
    /// a thread has 255 of them or what the entry's `.minnctapersm` makes ptxas leave it.
    pub const fn blocks_per_sm(&self, entry: &EntryInfo) -> u32 {
        // The driver keeps 1 KiB of every block's shared memory for itself.
        let by_smem = self.smem_per_sm / (entry.smem_bytes + 1024);
        let by_threads = self.threads_per_sm() / entry.threads;
        let mut by_registers = self.registers_per_sm / (entry.threads * 256);
        if by_registers < entry.min_blocks_per_sm {
            by_registers = entry.min_blocks_per_sm;
        }
        let mut blocks = if by_smem < by_registers { by_smem } else { by_registers };
        if by_threads < blocks {
            blocks = by_threads;
        }
        if blocks == 0 { 1 } else { blocks }
    }
}

/// A card from its data sheet; shared memory in KiB as `[of a block, of an SM]`.
const fn card(
    name: &'static str,
    compute_capability: (u32, u32),
    sms: u32,
    [block_kib, sm_kib]: [u32; 2],
    l2_bytes: u64,
    memory_gib: u64,
) -> Capabilities {
    Capabilities {
        name: Cow::Borrowed(name),
        compute_capability,
        sms,
        smem_per_block: block_kib * 1024,
        smem_per_sm: sm_kib * 1024,
        registers_per_sm: 65_536,
        l2_bytes,
        memory_bytes: memory_gib << 30,
    }
}
