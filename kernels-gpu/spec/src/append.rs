//! Append kernels: they write new tokens into a KV cache by slot mapping (`reshape_and_cache`).
use crate::*;
use core::marker::PhantomData;

/// Copies rows of 16-bit elements, without conversion, into a KV cache of the same dtype.
pub struct AppendCopy;

/// Divides rows of `E` by the KV cache's scales and rounds the results to `C`.
pub struct Append<E, C>(PhantomData<(E, C)>);

/// Rounds rows of `E` to integers of eight bits, and stores a scale for each row of a head. A warp has a
/// row.
pub struct AppendInt8<E>(PhantomData<E>);

/// Rounds rows of `E` to rows of [`E4m3Scaled`], as `C`, and stores the scale of each block of columns. A
/// warp has pairs of parts of one row.
pub struct AppendScaled<E, C>(PhantomData<(E, C)>);

/// Columns of one row that a thread copies, in keys and in values.
pub const APPEND_COLUMNS: usize = 8;

impl Line for AppendCopy {
    type Info = AppendInfo;
    const INFO: AppendInfo = AppendInfo { contract: Contract::of::<Self>(""), rounds: None, rotates: None };
}

impl<E: Element, C: Element> Line for Append<E, C> {
    type Info = AppendInfo;
    const INFO: AppendInfo =
        AppendInfo { contract: Contract::of::<Self>(""), rounds: Some([E::DTYPE, C::DTYPE]), rotates: None };
}

impl<E: Element> Line for AppendInt8<E> {
    type Info = AppendInfo;
    const INFO: AppendInfo = AppendInfo {
        contract: Contract::of::<Self>(""),
        rounds: Some([E::DTYPE, DType::Int8]),
        rotates: None,
    };
}

impl<E: Element, C: Element> Line for AppendScaled<E, C> {
    type Info = AppendInfo;
    const INFO: AppendInfo = AppendInfo {
        contract: Contract::of::<Self>(""),
        rounds: Some([E::DTYPE, DType::E4m3Scaled]),
        rotates: None,
    };
}

/// Appends differ in their elements. The grid deals parts of rows to threads.
macro_rules! of_appends {
    ($(impl [$($generic:tt)*] $kernel:ty = $target:expr;)*) => {
        $(impl<$($generic)*> Kernel for $kernel {
            type Params = AppendParams;
            const TARGET: Target = $target;
            const THREADS: u32 = 256;
            const SMEM_BYTES: usize = 0;
            const BLOCKS_PER_SM: u32 = 4;
            fn grid(params: &AppendParams) -> [u32; 3] {
                [params.parts.blocks(), 1, 1]
            }
        })*
    };
}
of_appends! {
    impl [] AppendCopy = Target::From(80);
    impl [E: Element, C: Element] Append<E, C> = C::TARGET;
    impl [E: Element] AppendInt8<E> = Target::From(80);
    impl [E: Element, C: Element] AppendScaled<E, C> = C::TARGET;
}

/// Parameters of an append kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendParams {
    /// Keys of the new tokens: rows of one batch.
    pub k: Tensor,
    /// Values of the new tokens.
    pub v: Tensor,
    /// The KV cache, without its block table.
    pub cache: Cache,
    /// The slot of each token.
    pub slots: Slots,
    /// Scales of keys and of values.
    pub scales: [PerHead; 2],
    /// The distribution of all tokens' heads over threads, head by head. A row has [`row_parts`] parts.
    pub parts: RowParts,
    /// Heads per token.
    pub heads: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    AppendParams { k, v, cache, slots, scales, parts, heads, reserved }
}

/// A compiled append kernel as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendInfo {
    /// The kernel's launch contract.
    pub contract: Contract,
    /// The dtype of the tokens and the dtype of the cache, or `None` if the kernel copies 16-bit elements
    /// unchanged.
    pub rounds: Option<[DType; 2]>,
    /// The dtype of the tokens that the kernel rotates, or `None` if it does not rotate.
    pub rotates: Option<DType>,
}

/// Parts of a row if each warp has a row: one part, or one pair of parts, per lane. Parts behind the row's
/// last one do not exist.
pub const WARP_PARTS: usize = 32;

/// Pairs of parts of a row of [`E4m3Scaled`], so that a warp has pairs of one row, and eight neighbouring
/// lanes have a block of columns with one scale. Pairs behind the row's last one do not exist.
pub const SCALED_PAIRS: usize = 2 * E4m3Scaled::SCALED / (2 * APPEND_COLUMNS);

/// Returns the number of parts, or of pairs of parts, of a row in a cache of `cache`. Without a scale in the
/// row, the row has `parts`.
pub const fn row_parts(cache: DType, parts: usize) -> usize {
    match cache {
        DType::Int8 => WARP_PARTS,
        DType::E4m3Scaled => SCALED_PAIRS,
        _ => parts,
    }
}

impl AppendInfo {
    /// Whether each warp must have parts of one row, because the row has its own scale.
    pub const fn whole_rows(&self) -> bool {
        matches!(self.rounds, Some([_, DType::Int8 | DType::E4m3Scaled]))
    }
}
