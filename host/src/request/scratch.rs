//! Scratch memory of launches, and the number of splits per sequence.

/// Scratch memory of a launch. For few queries on many keys, several thread blocks must share a sequence's
/// keys to keep the whole device busy. The blocks leave partial results in scratch memory.
///
/// Plan with [`Scratch::Fastest`], allocate the bytes of
/// [`Plan::scratch_bytes`](crate::plan::Plan::scratch_bytes), and launch with the memory at
/// [these addresses](crate::plan::ScratchBytes::at).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scratch {
    /// No scratch memory: the planner selects only kernels that need none.
    #[default]
    None,
    /// Memory that the caller will allocate after planning. The planner selects the fastest kernel.
    Fastest,
    /// This memory. The planner selects only kernels for which this memory suffices.
    Memory {
        /// Memory for partial results, at a multiple of 16. Its contents do not matter before and after a
        /// launch.
        workspace: Region,
        /// 32-bit counters at a multiple of 4, shared by the launches of one stream. All are zero before the
        /// first launch, and each launch leaves zeros. The counters elect the thread block that combines a
        /// sequence's splits. Without counters, a combine kernel combines the splits. It also does if one
        /// thread block would take longer; the plan then asks for no counters.
        counters: Option<Region>,
    },
}

impl Scratch {
    /// Returns a workspace without counters.
    pub const fn workspace(address: u64, bytes: u64) -> Self {
        Scratch::Memory { workspace: Region { address, bytes }, counters: None }
    }

    /// Returns whether a plan may use this number of bytes of workspace.
    pub(crate) const fn allows(&self, bytes: u64) -> bool {
        match self {
            Scratch::None => bytes == 0,
            Scratch::Fastest => true,
            Scratch::Memory { workspace, .. } => bytes <= workspace.bytes,
        }
    }

    /// Returns the number of bytes of workspace that a launch may use.
    pub(crate) const fn workspace_bytes(&self) -> u64 {
        match self {
            Scratch::None | Scratch::Fastest => 0,
            Scratch::Memory { workspace, .. } => workspace.bytes,
        }
    }

    /// Returns the scratch memory without the first bytes of the workspace.
    #[must_use]
    pub(crate) const fn behind(&self, bytes: u64) -> Self {
        match *self {
            Scratch::Memory { counters, workspace: Region { address, bytes: room } } => {
                let address = address.saturating_add(bytes);
                let workspace = Region { address, bytes: room.saturating_sub(bytes) };
                Scratch::Memory { workspace, counters }
            }
            other => other,
        }
    }

    /// Returns the workspace's address, or 0 without a workspace.
    pub(crate) const fn address(&self) -> u64 {
        match self {
            Scratch::None | Scratch::Fastest => 0,
            Scratch::Memory { workspace, .. } => workspace.address,
        }
    }

    /// Returns the counters, if any.
    pub(crate) const fn counters(&self) -> Option<Region> {
        match self {
            Scratch::None | Scratch::Fastest => None,
            Scratch::Memory { counters, .. } => *counters,
        }
    }
}

/// A region of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// The number of splits of a sequence's keys on a KV cache (FlashAttention's `num_splits`). One thread block
/// per key head takes one split.
///
/// Only decode kernels split sequences of KV caches. Decode kernels take at most 64 rows (queries x query
/// heads per key head), equal query counts per sequence, and no ALiBi slopes. With [`Splits::Auto`], decode
/// kernels also take the sequences of few queries of a mixed batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Splits {
    /// A number that depends on the sequence's share of all keys. The device computes the number when the
    /// launch runs, from the lengths in device memory.
    #[default]
    Auto,
    /// This number of splits, but at most one per 16 keys. A number of 2 or more needs a workspace and a
    /// decode kernel.
    Exactly(u32),
    /// One split for each run of this number of keys, a multiple of 128. If a sequence may have more keys,
    /// the launch needs a workspace.
    Keys(u32),
}
