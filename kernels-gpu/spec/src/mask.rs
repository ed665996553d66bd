//! Masks: which keys a query sees. Kinds as values and as types, and the parameters of masks.
//!
//! Queries and keys are numbered from 0 within their sequence. Query `q` stands at position `q + shift`
//! among the keys ([`crate::Window::shift`]).
use crate::{And, FastDiv, Integers, Plain, ScoreKinds};

/// The mask kind, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// All keys.
    Full,
    /// Keys up to the query's position.
    Causal,
    /// The general kind: windows, softcap, ALiBi slopes.
    Local,
    /// A prefix that every query sees, and keys up to the query's position (prefix-LM).
    Prefix,
    /// Keys of the query's own chunk, up to its position (Llama 4's chunked attention).
    Chunked,
    /// A bit per query and key, for the last keys of a sequence (trees of drafts).
    Bits,
    /// A mask that a user of this crate defines. No line of the table has it.
    Own,
}
impl MaskKind {
    /// The mask's name in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Full => "full",
            MaskKind::Causal => "causal",
            MaskKind::Local => "local",
            MaskKind::Prefix => "prefix",
            MaskKind::Chunked => "chunked",
            MaskKind::Bits => "bits",
            MaskKind::Own => "own",
        }
    }
}

/// A mask, as a type. A kernel loads a value of this type for a work tile.
pub trait MaskMarker: Copy {
    /// The type as a value.
    const KIND: MaskKind = MaskKind::Own;
    /// The score modifications of the mask, beside softcap and slopes of [`Local`].
    const SCORES: ScoreKinds = ScoreKinds::NONE;
    /// The mask's own parameters: `#[repr(C)]`, a multiple of 8 bytes. A kernel with such a mask is a
    /// [`crate::With`] kernel, unless the parameters are empty.
    type Params: Plain;
    /// Bytes per score that the producer of a Hopper kernel copies to shared memory beside keys.
    const STAGED_BYTES: usize = 0;
}

/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full;
/// Query `q` sees keys `0..=q + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Causal;
/// The general kind: [`crate::Window`], softcap, and ALiBi slopes.
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// Query `q` sees keys `0..=q + shift`, and the keys of its sequence's prefix.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// Keys of the prefix.
    pub keys: i32,
}

/// Parameters of [`Prefix`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixParams {
    /// Keys of each sequence's prefix. Sequences beyond the last integer have the last one's prefix. Empty if
    /// the host knows the prefix. A negative prefix is empty; a prefix longer than the keys is all keys.
    pub lengths: Integers,
    /// Keys of every sequence's prefix, if `lengths` has none.
    pub all: u32,
    /// Padding: 0.
    pub reserved: u32,
}

/// The query at position `p` sees keys `p / chunk * chunk..=p`.
#[derive(Clone, Copy, Debug)]
pub struct Chunked {
    /// Keys of a chunk.
    pub chunk: FastDiv,
}

/// Parameters of [`Chunked`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedParams {
    /// Keys of a chunk.
    pub chunk: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}

/// A query sees every key before the last [`BitsParams::keys`] of its sequence, and the last keys whose bit
/// is set in the query's row.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Device address of the head's first row.
    pub base: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    /// Index of the last row.
    pub last_row: u32,
    /// Index of a row's last byte.
    pub last_byte: u32,
    /// The key of a row's first bit.
    pub first_key: u32,
    /// See [`crate::Window::shift`]: row 0 is the query at this position.
    pub shift: i32,
}

/// Parameters of [`Bits`]: u8 `[batch or 1][heads or 1][queries][ceil(keys / 8)]`, least significant bit
/// first. Rows count from a sequence's first query, on varlen tensors too. Kernels clamp rows and bytes to
/// the existing ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitsParams {
    /// Device address of the first byte.
    pub base: u64,
    /// Bytes from one sequence to the next; 0 if all sequences share their rows.
    pub batch_bytes: u64,
    /// Bytes from one query head to the next; 0 if all heads share their rows.
    pub head_bytes: u64,
    /// Bytes from one row to the next, at least `ceil(keys / 8)`.
    pub row_bytes: u32,
    /// Rows of a head, at least 1.
    pub rows: u32,
    /// Bits per row, at least 1. Bit `i` is key `max(k_len - keys, 0) + i` of a sequence of `k_len` keys.
    pub keys: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    PrefixParams { lengths, all, reserved }
    ChunkedParams { chunk, reserved }
    BitsParams { base, batch_bytes, head_bytes, row_bytes, rows, keys, reserved }
}

/// Keys that both masks see (FlexAttention's `and_masks`).
impl<A: MaskMarker, B: MaskMarker> MaskMarker for (A, B) {
    type Params = And<A::Params, B::Params>;
}

macro_rules! masks {
    ($($mask:ident: $params:ty;)*) => {$(
        impl MaskMarker for $mask {
            const KIND: MaskKind = MaskKind::$mask;
            type Params = $params;
        }
    )*};
}
masks! {
    Full: ();
    Causal: ();
    Local: ();
    Prefix: PrefixParams;
    Chunked: ChunkedParams;
    Bits: BitsParams;
}
