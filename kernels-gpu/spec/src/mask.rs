//! Masks: which keys a query sees. This file has the kinds as values and as types, and the parameters of
//! masks.
//!
//! Queries and keys are numbered from 0 within their sequence. Query `q` has position `q + shift` among the
//! keys ([`crate::Window::shift`]).
use crate::{And, BlockMask, FastDiv, Head, Integers, Plain, ScoreKinds};

/// A kind of mask, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// A query sees all keys.
    Full,
    /// A query sees the keys up to its position.
    Causal,
    /// The general kind: windows, softcap, ALiBi slopes.
    Local,
    /// A query sees the prefix of its sequence, and the keys up to its position (prefix-LM).
    Prefix,
    /// A query sees the keys of its own chunk, up to its position (Llama 4's chunked attention).
    Chunked,
    /// One bit per query and key decides whether the query sees the key. Only the last keys of a sequence
    /// have bits (trees of drafts). Forward kernels also compute a softcap.
    Bits,
    /// A mask that a user of this crate defines. No line of the table has this kind.
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

/// A mask, as a type. The data of the mask for one work tile.
pub trait MaskMarker: Copy {
    /// The kind as a value.
    const KIND: MaskKind = MaskKind::Own;
    /// The score modifications of the mask, beside softcap and slopes of [`Local`], and softcap of [`Bits`].
    const SCORES: ScoreKinds = ScoreKinds::NONE;
    /// Whether a [`BlockMask`] lists the key blocks of each work tile.
    const LISTED: bool = false;
    /// The mask's own parameters: a `#[repr(C)]` type whose size is a multiple of 8 bytes. A kernel with such
    /// a mask is a [`crate::With`] kernel, unless the parameters are empty.
    type Params: Plain;
    /// Whether the mask reads the request's window. If this constant is false, the mask cannot read it, and a
    /// kernel that makes block masks needs no window.
    const READS_WINDOW: bool = false;
    /// Bytes per score that the producer of a Hopper kernel copies to shared memory beside keys.
    const STAGED_BYTES: usize = 0;

    /// The block mask among the parameters, which the host compares with kernel and request.
    fn block_mask(_: &Self::Params) -> Option<&BlockMask> {
        None
    }

    /// The table among the parameters that the scores read: [`crate::ScoreMarker::TABLE`].
    fn table(_: &Self::Params) -> Option<Integers> {
        None
    }
}

/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full;
/// Query `q` sees keys `0..=q + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Causal;
/// The general kind: a [`crate::Window`], softcap, and ALiBi slopes.
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// The window of [`Local`], without softcap and slopes: `left` keys before the query's position, `right` keys
/// behind it.
#[derive(Clone, Copy, Debug)]
pub struct Windowed {
    /// Number of keys before the query's position.
    pub left: i32,
    /// Number of keys behind the query's position.
    pub right: i32,
}
impl MaskMarker for Windowed {
    const KIND: MaskKind = MaskKind::Local;
    const READS_WINDOW: bool = true;
    type Params = ();
}

/// Query `q` sees keys `0..=q + shift`, and the keys of its sequence's prefix.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// Number of keys of the prefix.
    pub keys: i32,
}

/// Parameters of [`Prefix`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixParams {
    /// Number of keys of each sequence's prefix. A sequence beyond the last integer has the prefix of the
    /// last integer. If the host knows the prefix, this list is empty. A negative prefix is empty; a prefix
    /// longer than the keys is all keys.
    pub lengths: Integers,
    /// Number of keys of every sequence's prefix, if `lengths` is empty.
    pub all: u32,
    /// Padding: 0.
    pub reserved: u32,
}

/// The query at position `p` sees keys `p / chunk * chunk..=p`.
#[derive(Clone, Copy, Debug)]
pub struct Chunked {
    /// Number of keys of a chunk.
    pub chunk: FastDiv,
}

/// Parameters of [`Chunked`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedParams {
    /// Number of keys of a chunk.
    pub chunk: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}

contract::described! {
    /// A query sees every key before the last keys of its sequence ([`BitsParams`]), and each of these
    /// last keys whose bit is set in the query's row.
    #[derive(Clone, Copy, Debug)]
    pub struct Bits {
        /// Device address of the head's first row.
        base: u64,
        /// Bytes from one row to the next.
        row_bytes: u32,
        /// Index of the last row.
        last_row: u32,
        /// Index of a row's last byte.
        last_byte: u32,
        /// The key to which a row's first bit belongs.
        first_key: u32,
        /// The position of row 0's query ([`crate::Window::shift`]).
        shift: i32,
    }
}

contract::described! {
    /// Parameters of [`Bits`]: u8 `[batch or 1][heads or 1][queries][ceil(keys / 8)]`, least significant bit
    /// first. Rows count from a sequence's first query, on varlen tensors too. Kernels clamp a row or byte
    /// that does not exist to the last one.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BitsParams {
        /// Device address of the first byte.
        base: u64,
        /// Bytes from one sequence to the next; 0 if all sequences share their rows.
        batch_bytes: u64,
        /// Bytes from one query head to the next; 0 if all heads share their rows.
        head_bytes: u64,
        /// Bytes from one row to the next, at least `ceil(keys / 8)`.
        row_bytes: u32,
        /// Number of rows of a head, at least 1.
        rows: u32,
        /// Number of bits per row, at least 1. In a sequence of `k_len` keys, bit `i` belongs to key
        /// `max(k_len - keys, 0) + i`.
        keys: u32,
        /// Padding: 0.
        reserved: u32,
    }
}
impl Bits {
    /// The bits of a head of a sequence that has `keys` keys.
    #[inline(always)]
    pub fn of(p: &BitsParams, of: Head, keys: u32, shift: i32) -> Self {
        let sequence = (of.sequence() as u64).wrapping_mul(p.batch_bytes);
        let head = (of.head() as u64).wrapping_mul(p.head_bytes);
        Bits {
            base: p.base.wrapping_add(sequence).wrapping_add(head),
            row_bytes: p.row_bytes,
            last_row: p.rows - 1,
            last_byte: (p.keys - 1) / 8,
            shift,
            first_key: keys.saturating_sub(p.keys),
        }
    }
}

contract::no_padding! {
    PrefixParams { lengths, all, reserved }
    ChunkedParams { chunk, reserved }
    BitsParams { base, batch_bytes, head_bytes, row_bytes, rows, keys, reserved }
}

/// A query sees the keys that it sees under both masks (FlexAttention's `and_masks`).
impl<A: MaskMarker, B: MaskMarker> MaskMarker for (A, B) {
    const READS_WINDOW: bool = A::READS_WINDOW || B::READS_WINDOW;
    type Params = And<A::Params, B::Params>;
}

macro_rules! masks {
    ($($mask:ident: $params:ty;)*) => {$(
        impl MaskMarker for $mask {
            const KIND: MaskKind = MaskKind::$mask;
            const READS_WINDOW: bool = matches!(MaskKind::$mask, MaskKind::Local);
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
