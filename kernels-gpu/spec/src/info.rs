//! A table line as a value: everything that the host knows about a compiled kernel.
use crate::{
    CacheScales, Contract, DType, Kernel, MaskKind, PageKind, Path, Precision, Scheduled, ScoreKinds,
};

/// A compiled attention kernel as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttnInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// The results that the kernel computes.
    pub pass: Pass,
    /// The instructions that copy and multiply tiles.
    pub isa: Isa,
    /// The arithmetic units that compute the products.
    pub path: Path,
    /// The schedule of the mainloop.
    pub schedule: Schedule,
    /// The tile scheduler.
    pub scheduler: TileScheduler,
    /// The layout of queries and output.
    pub queries: Queries,
    /// The layout of keys and values.
    pub keys: Keys,
    /// Whether the kernel supports split-KV with a combine kernel.
    pub splits: bool,
    /// Dtype of Q.
    pub dtype: DType,
    /// Dtype of K and V.
    pub kv_dtype: DType,
    /// Dtype of O.
    pub o_dtype: DType,
    /// Dtype of dO, dQ, dK and dV; forward kernels have none.
    pub grad_dtype: Option<DType>,
    /// Largest head dim, in elements. Smaller head dims (multiples of 8) run with zeros in the missing
    /// columns.
    pub head_dim: u32,
    /// Largest number of columns of V and O, in elements. See [`AttnInfo::takes_columns`].
    pub head_dim_v: u32,
    /// The mask kind.
    pub mask: MaskKind,
    /// The score modifications beside the mask.
    pub scores: ScoreKinds,
    /// Rows per block: queries, or, with packed GQA ([`AttnInfo::decodes`]), queries x query heads per key
    /// head. See [`Pass`].
    pub tile_m: u32,
    /// Keys per stage. See [`Pass`].
    pub tile_n: u32,
    /// Stages in shared memory: of keys and values, or of queries. See [`Pass`].
    pub stages: u32,
}

/// The results of an attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// O and LSE. The rows of a block are queries, and its stages are keys.
    Forward,
    /// Entropy and largest score of each row. The rows of a block are queries, and its stages are keys.
    Statistics,
    /// dK and dV. The rows of a block are keys, and its stages are queries.
    DkDv,
    /// dQ. The rows of a block are queries, and its stages are keys.
    Dq,
    /// dK and dV, and dQ as sums in f32. The rows of a block are keys, and its stages are queries.
    Gradients,
    /// The gradient of a table that scores read. The rows of a block are queries, and its stages
    /// are queries with keys.
    Table,
    /// The gradient of a bias. The rows of a block are queries, and its stage is queries with keys.
    Dbias,
}

impl Pass {
    /// Whether kernels of this pass run in the launches of kernels of dK and dV.
    pub const fn is_beside(self) -> bool {
        matches!(self, Pass::Dq | Pass::Table | Pass::Dbias)
    }
}

/// The instructions that copy and multiply tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// `cp.async` and `mma.sync`, from sm_80 on.
    Sm80,
    /// TMA and `wgmma`, on sm_90a only.
    Sm90a,
}

/// The instructions, as a type.
pub trait IsaMarker {
    /// The instructions as a value.
    const KIND: Isa;
    /// Parameters of a varlen kernel of 16 bits.
    type OnVarlen: Scheduled;
    /// Parameters of a kernel on a KV cache.
    type Paged<S: CacheScales>: Scheduled;
}
/// [`Isa::Sm80`].
pub struct Sm80;
/// [`Isa::Sm90a`].
pub struct Sm90a;

/// The schedule of the mainloop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The steps of each key block `n` run one after another: S(n), softmax(n), O += P(n) V(n).
    Sequential,
    /// S(n - 1) runs during the exponentials of P(n).
    Overlapped,
    /// [`Schedule::Sequential`], with a producer warp.
    Specialised,
    /// Ping-pong: consumer warpgroups take turns at issuing products. The warpgroups issue S(n) together with
    /// O += P(n + 1) V(n + 1), and a producer warpgroup copies.
    PingPong,
    /// [`Schedule::PingPong`], on one half of O's columns. Two work tiles compute a tile of queries.
    Halves,
    /// The steps of each key block run one after another, on the transposed products S^T = K Q^T and O^T =
    /// V^T P^T. Each warp has its own stream of keys, or, on a latent cache, its share of V's columns.
    Transposed,
    /// Two warpgroups take turns at key blocks, and each has half of O's columns. The owner of block `n`
    /// passes P(n) to the other warpgroup. S(n + 1) and O += P(n) V(n) of one warpgroup run beside the
    /// softmax of the other.
    Seesaw,
}
impl Schedule {
    /// The schedule's name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Schedule::Sequential => "sequential",
            Schedule::Overlapped => "overlapped",
            Schedule::Specialised => "specialised",
            Schedule::PingPong => "ping-pong",
            Schedule::Halves => "halves",
            Schedule::Transposed => "transposed",
            Schedule::Seesaw => "seesaw",
        }
    }
}

/// The tile scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileScheduler {
    /// One work tile per block.
    SingleTile,
    /// Persistent: the grid fills the GPU once, and each block takes work tile after work tile.
    Persistent,
    /// Blocks derive their splits of sequences from the lengths on the device: [`crate::DecodeOrder`].
    Lengths,
}

/// The layout of queries and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queries {
    /// Tensors `[batch, queries, heads, head_dim]`.
    Batched,
    /// `[rows of all sequences, heads, head_dim]`, whose sequences begin at `cu_seqlens_q`.
    Varlen,
    /// Batched or varlen; the parameters decide.
    Any,
    /// Varlen queries on a KV cache. The kernel takes either the sequences of few queries or the sequences of
    /// many.
    Mixed,
}

/// The layout of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keys {
    /// Tensors `[batch, keys, heads, head_dim]`.
    Batched,
    /// `[rows of all sequences, heads, head_dim]`, whose sequences begin at `cu_seqlens_k`.
    Varlen,
    /// Tensors that [`crate::QuantiseKv`] or [`crate::RoundFp8`] has quantised: with the layout of queries.
    Quantised,
    /// [`Keys::Quantised`], whose values stay as they are.
    QuantisedAlone,
    /// A [`crate::Cache`] with pages of this kind.
    Cache(PageKind),
    /// A [`crate::Cache`] with pages of any size, whose keys are operands as they are. Of e4m3:
    /// [`crate::RoundFp8`] has rounded the queries, and [`crate::LayFp8Pages`] laid the values. Of int8:
    /// [`crate::LayInt8Pages`] has rounded the values.
    OperandCache,
    /// A [`crate::Cache`] with pages of any size, whose values are the first columns of its keys (MLA).
    Latent,
    /// [`Keys::Latent`], of which each query reads the keys of its list.
    Listed,
}

impl Keys {
    /// The layout of a varlen kernel's keys, whose dense kernel has these keys.
    pub(crate) const fn of_sequences(self) -> Self {
        if matches!(self, Keys::Quantised | Keys::QuantisedAlone) { self } else { Keys::Varlen }
    }

    /// The layout of keys of a kernel on a cache, whose dense kernel has these keys.
    pub(crate) const fn of_cache(self) -> Self {
        if matches!(self, Keys::Quantised) { Keys::OperandCache } else { Keys::Cache(PageKind::Rows) }
    }
}

impl AttnInfo {
    /// Largest numbers of columns: of Q and K, and of V and O.
    pub const fn columns(&self) -> [u32; 2] {
        [self.head_dim, self.head_dim_v]
    }

    /// Whether values have their own number of columns, and in a KV cache their own strides. The other
    /// kernels save the registers. At head dim 256, the general forward kernel has registers left.
    pub const fn has_own_values(&self) -> bool {
        let is_forward = matches!(self.pass, Pass::Forward);
        let general = matches!((self.schedule, self.mask), (Schedule::Sequential, MaskKind::Local));
        self.head_dim != self.head_dim_v
            || self.has_maps()
            || is_forward && general && self.head_dim == 256 && !self.has_scales()
    }

    /// Whether the kernel accepts keys of `head_dim` columns with values of `head_dim_v`.
    pub const fn takes_columns(&self, [head_dim, head_dim_v]: [usize; 2]) -> bool {
        let fits = head_dim <= self.head_dim as usize && head_dim_v <= self.head_dim_v as usize;
        fits && (self.has_own_values() || head_dim == head_dim_v)
    }

    /// Whether the kernel takes few queries per sequence, with lengths on the device
    /// ([`crate::DecodeOrder`]).
    pub const fn decodes(&self) -> bool {
        matches!(self.scheduler, TileScheduler::Lengths)
    }

    /// Whether values are the first columns of keys.
    pub const fn is_latent(&self) -> bool {
        matches!(self.keys, Keys::Latent | Keys::Listed)
    }

    /// Number of work tiles that compute a tile of queries: each has a share of O's columns. The order of
    /// work tiles counts the shares of a head as heads.
    pub const fn shares(&self) -> u32 {
        if matches!(self.schedule, Schedule::Halves) { 2 } else { 1 }
    }

    /// Whether the kernel computes with Hopper's warpgroups.
    pub const fn is_hoppers(&self) -> bool {
        matches!(self.isa, Isa::Sm90a)
    }

    /// Whether the kernel reads tensors through tensor maps. Hopper's kernels do, except on lists of keys,
    /// and on latents of eight bits.
    pub const fn has_maps(&self) -> bool {
        let gathers = match self.keys {
            Keys::Listed => true,
            Keys::Latent => self.kv_dtype.bytes() == 1,
            _ => false,
        };
        self.is_hoppers() && !gathers
    }

    /// Whether the kernel takes scales of keys and values.
    pub const fn has_scales(&self) -> bool {
        matches!(self.kv_dtype, DType::E4m3 | DType::Int8)
    }

    /// The precision of the products.
    pub const fn precision(&self) -> Precision {
        match (self.keys, self.isa) {
            (Keys::QuantisedAlone, _) => Precision::Int8F16,
            (Keys::Quantised | Keys::OperandCache, Isa::Sm80) => Precision::Int8Fp8,
            (Keys::Quantised | Keys::OperandCache, Isa::Sm90a) => Precision::Fp8,
            _ => Precision::Inputs,
        }
    }

    /// Whether the kernel's queries are always varlen.
    pub const fn is_varlen(&self) -> bool {
        matches!(self.queries, Queries::Varlen)
    }

    /// The family's name in tables and reports.
    pub const fn family(&self) -> &'static str {
        match (self.isa, self.queries, self.schedule) {
            _ if matches!(self.pass, Pass::Statistics) => "statistics",
            _ if matches!(self.pass, Pass::DkDv) => "backward dk and dv",
            _ if matches!(self.pass, Pass::Dq) => "backward dq",
            _ if matches!(self.pass, Pass::Gradients) && self.is_varlen() => "hopper backward packed",
            _ if matches!(self.pass, Pass::Gradients) => "hopper backward",
            _ if matches!(self.pass, Pass::Table) => "backward table",
            _ if matches!(self.pass, Pass::Dbias) => "backward dbias",
            (Isa::Sm80, ..) if matches!(self.keys, Keys::Listed) => "sparse mla",
            (Isa::Sm90a, ..) if matches!(self.keys, Keys::Listed) => "hopper sparse mla",
            (Isa::Sm80, ..) if matches!(self.keys, Keys::Latent) => "mla",
            (Isa::Sm90a, ..) if matches!(self.keys, Keys::Latent) => "hopper mla",
            (_, Queries::Mixed, Schedule::Transposed) => "mixed few",
            (_, Queries::Mixed, _) => "mixed many",
            (_, _, Schedule::Transposed) => "decode",
            (Isa::Sm80, Queries::Any, _) if matches!(self.keys, Keys::OperandCache) => "quantised paged",
            (Isa::Sm80, Queries::Any, _) => "paged",
            (Isa::Sm90a, Queries::Any, _) if matches!(self.keys, Keys::OperandCache) => {
                "hopper quantised paged"
            }
            (Isa::Sm90a, Queries::Any, _) => "hopper paged",
            (Isa::Sm90a, Queries::Varlen, _) if matches!(self.keys, Keys::Quantised) => {
                "hopper quantised packed"
            }
            (Isa::Sm90a, ..) if matches!(self.keys, Keys::Quantised) => "hopper quantised",
            (_, Queries::Varlen, _) if matches!(self.keys, Keys::Quantised) => "quantised packed",
            (_, Queries::Varlen, _) if matches!(self.keys, Keys::QuantisedAlone) => "quantised keys packed",
            _ if matches!(self.keys, Keys::Quantised) => "quantised",
            _ if matches!(self.keys, Keys::QuantisedAlone) => "quantised keys",
            (Isa::Sm80, Queries::Varlen, _) => "packed",
            (Isa::Sm90a, Queries::Varlen, _) => "hopper packed",
            (Isa::Sm80, Queries::Batched, _) if self.splits => "split",
            (Isa::Sm80, Queries::Batched, _) => "forward",
            (Isa::Sm90a, Queries::Batched, _) => "hopper",
        }
    }

    /// Warps per block.
    pub const fn warps(&self) -> u32 {
        self.contract.threads / 32
    }

    /// Rows per box of a Hopper kernel's Q and O: one warpgroup's rows.
    pub const Q_BOX_ROWS: u32 = 64;

    /// Columns of a Hopper kernel's tiles: those of a gradient kernel have whole panels, which the warpgroups
    /// share.
    pub const fn tile_columns(&self) -> u32 {
        if matches!(self.pass, Pass::Gradients) { self.head_dim.next_power_of_two() } else { self.head_dim }
    }

    /// Columns per box of a Hopper kernel's tensor of this dtype. 16 bits: 64, with the 128-byte swizzle, or
    /// 32, with the 64-byte swizzle, if the head dim is an odd multiple of 32. A row of a box of eight bits
    /// has 128 bytes, too, even if the head dim is smaller.
    const fn panel(&self, dtype: DType) -> u32 {
        if dtype.bytes() == 1 { EIGHT_BIT_PANEL } else { panel(self.tile_columns()) }
    }

    /// The dtype of keys and values of the kernel on a cache.
    pub(crate) const fn dtype_in_cache(&self) -> DType {
        match (self.keys, self.isa) {
            (Keys::Quantised, Isa::Sm90a) => DType::E4m3,
            (Keys::Quantised, Isa::Sm80) => DType::Int8,
            _ => self.kv_dtype,
        }
    }

    /// Columns and rows of a Hopper kernel's boxes: of Q, of K and V, and of O.
    pub const fn boxes(&self) -> [[u32; 2]; 3] {
        let [q, kv, o] = [self.panel(self.dtype), self.panel(self.kv_dtype), self.panel(self.o_dtype)];
        [[q, Self::Q_BOX_ROWS], [kv, self.tile_n], [o, Self::Q_BOX_ROWS]]
    }

    /// The columns and rows of the boxes of a bias that a Hopper kernel copies beside keys.
    pub const fn bias_box(&self) -> [u32; 2] {
        bias_box(self.tile_n)
    }
}

/// The box of a bias in stages of `tile_n` keys: columns and rows.
pub(crate) const fn bias_box(tile_n: u32) -> [u32; 2] {
    [panel(tile_n), AttnInfo::Q_BOX_ROWS]
}

/// The boxes of Q and O, and of K and V, of 16 bits, for a head dim and a number of keys per stage.
pub(crate) const fn boxes(head_dim: u32, tile_n: u32) -> [[u32; 2]; 2] {
    [[panel(head_dim), AttnInfo::Q_BOX_ROWS], [panel(head_dim), tile_n]]
}

/// Columns per box of a tensor of eight bits.
pub(crate) const EIGHT_BIT_PANEL: u32 = 128;

/// Columns per box of a tensor with this number of columns.
pub(crate) const fn panel(head_dim: u32) -> u32 {
    if head_dim.is_multiple_of(64) { 64 } else { 32 }
}

/// A kernel that can stand in a table line.
pub trait Line: Kernel {
    /// The info struct of this kind of kernel.
    type Info;
    /// The kernel's info, without a symbol.
    const INFO: Self::Info;
}

/// A kernel with a table line.
pub trait Entry: Line {
    /// The kernel's launch contract.
    const CONTRACT: Contract;
}
