//! Memory that launches use beside their tensors, and in how many splits the keys of a sequence are cut.

/// Memory that a launch may use beside its tensors: few queries on many keys keep the whole device busy only
/// where several thread blocks share a sequence's keys, and they leave partial results there.
///
/// Plan with [`Scratch::Fastest`], allocate what [`Plan::scratch_bytes`](crate::plan::Plan::scratch_bytes)
/// says, and launch with that [memory](Scratch::Memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scratch {
    /// None: only kernels that need none are planned.
    #[default]
    None,
    /// Memory that is yet to be allocated: the fastest kernel is planned, whatever it needs.
    Fastest,
    /// This memory: only kernels for which it suffices are planned.
    Memory {
        /// What splits of a sequence's keys leave.
        workspace: Workspace,
        /// Zeros that elect the thread block that combines a sequence's splits; without them a second kernel
        /// does it.
        counters: Option<Counters>,
    },
}

impl Scratch {
    /// A workspace without counters.
    pub const fn workspace(address: u64, bytes: u64) -> Self {
        Scratch::Memory { workspace: Workspace { address, bytes }, counters: None }
    }

    /// Whether a plan may need so many bytes of workspace.
    pub(crate) const fn allows(&self, bytes: u64) -> bool {
        match self {
            Scratch::None => bytes == 0,
            Scratch::Fastest => true,
            Scratch::Memory { workspace, .. } => bytes <= workspace.bytes,
        }
    }

    /// Bytes of workspace that a launch has.
    pub(crate) const fn workspace_bytes(&self) -> u64 {
        match self {
            Scratch::None | Scratch::Fastest => 0,
            Scratch::Memory { workspace, .. } => workspace.bytes,
        }
    }

    /// The workspace's address; 0 where there is none.
    pub(crate) const fn address(&self) -> u64 {
        match self {
            Scratch::None | Scratch::Fastest => 0,
            Scratch::Memory { workspace, .. } => workspace.address,
        }
    }

    /// The counters, where there are some.
    pub(crate) const fn counters(&self) -> Option<Counters> {
        match self {
            Scratch::None | Scratch::Fastest => None,
            Scratch::Memory { counters, .. } => *counters,
        }
    }
}

/// Device memory for partial results. Its contents mean nothing before and after a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Device address. A multiple of 16.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Counters of 32 bits in device memory that launches of one stream share: all zero before the first launch,
/// and zero again after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Bytes from there on.
    pub bytes: u64,
}

/// In how many splits the keys of a sequence on a cache are cut, each one thread block's per key head
/// (FlashAttention's `num_splits`).
///
/// Decode kernels cut sequences, and they alone have sinks. They take at most 64 rows (queries times the query
/// heads of a key head), as many queries for each sequence, and no ALiBi slopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Splits {
    /// As many as the sequence's share of all keys is worth on this device. The device decides when the
    /// launch runs, by the lengths that it finds there.
    #[default]
    Auto,
    /// This many, but no more than the sequence has tiles of 16 keys. From 2 on it needs a workspace and a
    /// decode kernel.
    Exactly(u32),
    /// One per this many keys: the bits of a sequence's results then depend on nothing but the sequence
    /// itself and the kind of device, whatever is beside it in the batch, wherever its pages are and
    /// however large they are. A multiple of 128. Where a sequence may have more keys it needs a workspace.
    Chunk(u32),
}

impl Splits {
    /// A chunk that suits most caches: 1024 keys.
    pub const CHUNK: Splits = Splits::Chunk(1024);
}
