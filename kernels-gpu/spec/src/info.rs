//! A line of the table as a value: what the host knows of a compiled kernel.
use crate::{
    Contract, DType, FwdParams, HopperPagedParams, HopperParams, Kernel, MaskKind, PageKind, PagedParams,
    Path, RaggedMap, Scheduled,
};

/// A compiled attention kernel as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttnInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Which instructions move and multiply tiles.
    pub isa: Isa,
    /// What multiplies tiles.
    pub path: Path,
    /// Order of work in the main loop.
    pub schedule: Schedule,
    /// Which thread block does which work tiles.
    pub scheduler: TileScheduler,
    /// How queries and output lie.
    pub queries: Queries,
    /// How keys and values lie.
    pub keys: Keys,
    /// Whether several thread blocks may share a tile's keys, whose results a combine kernel merges.
    pub splits: bool,
    /// Element type of Q and O.
    pub dtype: DType,
    /// Element type of K and V.
    pub kv_dtype: DType,
    /// Largest head dim, in elements. Smaller ones (multiples of 8) run with their missing columns zero.
    pub head_dim: u32,
    /// Which keys a query sees.
    pub mask: MaskKind,
    /// Rows of a block: queries, or where a key head's query heads share a tile (packed GQA, as in
    /// [`Schedule::Transposed`]) queries times these heads.
    pub tile_m: u32,
    /// Keys of a stage.
    pub tile_n: u32,
    /// Key/value stages in shared memory.
    pub stages: u32,
}

/// Which instructions move and multiply tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// `cp.async` and `mma.sync`, from sm_80 on.
    Sm80,
    /// TMA and `wgmma`, on sm_90a alone.
    Sm90a,
}

/// Instructions, by type.
pub trait IsaMarker {
    /// The same as a value.
    const KIND: Isa;
    /// What a forward on varlen tensors is told.
    type Varlen: Scheduled;
    /// What a kernel is told over a cache.
    type Paged: Scheduled;
}
/// [`Isa::Sm80`].
pub struct Sm80;
/// [`Isa::Sm90a`].
pub struct Sm90a;
impl IsaMarker for Sm80 {
    const KIND: Isa = Isa::Sm80;
    type Varlen = FwdParams;
    type Paged = PagedParams;
}
impl IsaMarker for Sm90a {
    const KIND: Isa = Isa::Sm90a;
    type Varlen = HopperParams<RaggedMap>;
    type Paged = HopperPagedParams;
}

/// Order of work in the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// S(n), softmax(n), O += P(n) V(n).
    Sequential,
    /// S(n - 1) is under way while P(n) is exponentiated.
    Overlapped,
    /// As sequential, and a warp of its own copies.
    Specialised,
    /// Warpgroups take turns at issuing products, each S(n) together with O += P(n + 1) V(n + 1), and another
    /// one copies.
    PingPong,
    /// Sequential on S^T = K Q^T and O^T = V^T P^T: each warp has a stream of keys of its own.
    Transposed,
}
impl Schedule {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Schedule::Sequential => "sequential",
            Schedule::Overlapped => "overlapped",
            Schedule::Specialised => "specialised",
            Schedule::PingPong => "ping-pong",
            Schedule::Transposed => "transposed",
        }
    }
}

/// Which thread block does which work tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileScheduler {
    /// One work tile per block.
    SingleTile,
    /// As many blocks as the card holds at once, each of which does tile after tile.
    Persistent,
    /// Blocks that derive their splits of sequences from lengths on the device: [`crate::DecodeOrder`].
    Lengths,
}

/// How queries and output lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queries {
    /// `[batch, queries, heads, head_dim]`.
    Batched,
    /// `[rows of all sequences, heads, head_dim]`, whose sequences begin at `cu_seqlens_q`.
    Varlen,
    /// Either of both: parameters say which.
    Any,
}

/// How keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keys {
    /// `[batch, keys, heads, head_dim]`.
    Batched,
    /// `[rows of all sequences, heads, head_dim]`, whose sequences begin at `cu_seqlens_k`.
    Varlen,
    /// A [`crate::Cache`], with such pages.
    Cache(PageKind),
}

impl AttnInfo {
    /// Whether it takes tensors as tensor maps.
    pub const fn has_maps(&self) -> bool {
        matches!(self.isa, Isa::Sm90a)
    }

    /// Whether its queries are varlen, whatever the parameters say.
    pub const fn is_varlen(&self) -> bool {
        matches!(self.queries, Queries::Varlen)
    }

    /// What kind of kernel it is, in tables and reports.
    pub const fn family(&self) -> &'static str {
        match (self.isa, self.queries, self.schedule) {
            (_, _, Schedule::Transposed) => "decode",
            (Isa::Sm80, Queries::Any, _) => "paged",
            (Isa::Sm90a, Queries::Any, _) => "hopper paged",
            (Isa::Sm80, Queries::Varlen, _) => "packed",
            (Isa::Sm90a, Queries::Varlen, _) => "hopper packed",
            (Isa::Sm80, Queries::Batched, _) if self.splits => "split",
            (Isa::Sm80, Queries::Batched, _) => "forward",
            (Isa::Sm90a, Queries::Batched, _) => "hopper",
        }
    }

    /// Warps of a block.
    pub const fn warps(&self) -> u32 {
        self.contract.threads / 32
    }

    /// Rows of the boxes in which a Hopper kernel's Q and O are copied: a warpgroup's.
    pub const Q_BOX_ROWS: u32 = 64;

    /// Columns of all boxes of a Hopper kernel: 64, swizzled by 128 bytes, or where the head dim is an odd
    /// number of 32, 32, swizzled by 64.
    pub const fn panel(&self) -> u32 {
        panel(self.head_dim)
    }

    /// Columns and rows of a Hopper kernel's boxes: those of Q and O, those of K and V.
    pub const fn boxes(&self) -> [[u32; 2]; 2] {
        boxes(self.head_dim, self.tile_n)
    }
}

/// [`AttnInfo::boxes`] of a configuration.
pub(crate) const fn boxes(head_dim: u32, tile_n: u32) -> [[u32; 2]; 2] {
    [[panel(head_dim), AttnInfo::Q_BOX_ROWS], [panel(head_dim), tile_n]]
}

/// Columns of boxes, for a head dim.
const fn panel(head_dim: u32) -> u32 {
    if head_dim.is_multiple_of(64) { 64 } else { 32 }
}

/// What may stand in a line of the table.
pub trait Line: Kernel {
    /// What the host knows of such a kernel.
    type Info;
    /// The same of this one, without a symbol.
    const INFO: Self::Info;
}

/// A kernel that stands in a line of the table.
pub trait Entry: Line {
    /// How it is compiled.
    const CONTRACT: Contract;
}
