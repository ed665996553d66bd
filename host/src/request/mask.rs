//! Masks: [`Mask`], and how queries align with keys ([`Alignment`]).
use super::Index;

/// The keys that a query sees.
///
/// By default the last query aligns with the last key (bottom-right, FlashAttention's rule): query `i` has
/// the position of key `i + seqlen_k - seqlen_q`. A row that sees no key gives O = 0 and LSE = `-inf`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask<M = u64> {
    /// All keys.
    #[default]
    Full,
    /// Keys up to the query's own position.
    Causal,
    /// The keys from `left` positions before the query's position to `right` positions after it, both
    /// inclusive. `None` is unbounded. `Window { left: None, right: Some(0) }` is causal.
    Window {
        /// Keys before the query's position.
        left: Option<u32>,
        /// Keys after the query's position.
        right: Option<u32>,
    },
    /// Keys up to the query's own position, and all keys of the sequence's prefix (prefix-LM).
    Prefix(Prefix<M>),
    /// Keys up to the query's own position, from the beginning of its chunk on (chunked-local attention,
    /// Llama 4): the query at position `p` sees keys `p / chunk * chunk..=p`.
    Chunked {
        /// Positions per chunk, 1 or more.
        chunk: u32,
    },
    /// The keys whose bit is 1: one bit per query and key, for trees of drafts, or any mask.
    Bits(MaskBits<M>),
}

/// The prefixes of [`Mask::Prefix`]. A prefix is a number of keys at the beginning of a sequence, which every
/// query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prefix<M = u64> {
    /// One number for all sequences.
    All(u32),
    /// One number per sequence, in device memory. The numbers may change between launches of one plan. A
    /// negative number counts as 0. A number beyond the sequence's keys counts as all keys.
    Each(Index<M>),
}

/// A mask of one bit per query and key, u8 in device memory, the least significant bit first. Bit `j` of row
/// `[b, h, i]` is 1 if query `i` of the sequence sees the sequence's key `max(keys - shape[3], 0) + j`. The
/// query sees all keys before the keys that have a bit.
///
/// A tree of drafts has one column per node, because its nodes are the last keys of a KV cache. If the mask
/// has a column for every key of the longest sequence, column 0 is key 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskBits<M = u64> {
    /// Device address of row `[0, 0, 0]`.
    pub address: M,
    /// Number of bytes of the buffer from `address` on. Strides must stay within these bytes.
    pub bytes: u64,
    /// `[batch, heads, seqlen_q, columns]`. Batch and heads may be 1, which broadcasts the mask. `columns`
    /// counts bits, at most `seqlen_k`. For varlen sequences and KV caches, `batch` counts sequences, and
    /// `seqlen_q` and `seqlen_k` are the longest sequence's.
    pub shape: [usize; 4],
    /// Strides in bytes: from one batch, head and row to the next. The stride of a dimension of extent 1 does
    /// not matter.
    pub strides: [i64; 3],
}

impl<M> MaskBits<M> {
    /// Creates a view with any strides. Planning checks the view.
    pub const fn new(address: M, bytes: u64, shape: [usize; 4], strides: [i64; 3]) -> Self {
        MaskBits { address, bytes, shape, strides }
    }

    /// Sets the strides, in bytes: from one batch, head and row to the next.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 3]) -> Self {
        self.strides = strides;
        self
    }

    /// Creates a contiguous view `[batch][heads][seqlen_q][bytes of a row]`: `columns` bits take `columns /
    /// 8` bytes, rounded up.
    pub const fn contiguous(address: M, bytes: u64, shape: [usize; 4]) -> Self {
        let [_, heads, rows, columns] = shape;
        let row = columns.div_ceil(8) as i64;
        let head = (rows as i64).wrapping_mul(row);
        Self::new(address, bytes, shape, [(heads as i64).wrapping_mul(head), head, row])
    }
}

impl<M: Copy> Mask<M> {
    /// Returns the maximum number of visible keys before and after a query's position; `None` is unbounded.
    /// These two numbers define the masks [`Mask::Full`], [`Mask::Causal`] and [`Mask::Window`].
    pub const fn sides(self) -> (Option<u32>, Option<u32>) {
        match self {
            Mask::Full | Mask::Prefix(_) | Mask::Bits(_) => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
            Mask::Chunked { chunk } => (Some(chunk.saturating_sub(1)), Some(0)),
        }
    }
}

impl<M: Copy> std::fmt::Display for Mask<M> {
    /// Prints `full`, `causal`, `window 1023,0` (-1 is unbounded), `prefix 100`, `prefix of each sequence`,
    /// `chunked 8192`, or `bits [1, 1, 8, 8]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: Option<u32>| side.map_or("-1".into(), |n| n.to_string());
        match *self {
            Mask::Full => write!(f, "full"),
            Mask::Causal => write!(f, "causal"),
            Mask::Window { left, right } => write!(f, "window {},{}", side(left), side(right)),
            Mask::Prefix(Prefix::All(keys)) => write!(f, "prefix {keys}"),
            Mask::Prefix(Prefix::Each(_)) => write!(f, "prefix of each sequence"),
            Mask::Chunked { chunk } => write!(f, "chunked {chunk}"),
            Mask::Bits(MaskBits { shape, .. }) => write!(f, "bits {shape:?}"),
        }
    }
}

/// How queries align with keys if there are more or fewer queries than keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Alignment {
    /// The last query aligns with the last key (FlashAttention).
    #[default]
    BottomRight,
    /// The first query aligns with the first key (PyTorch's `is_causal`).
    TopLeft,
}
