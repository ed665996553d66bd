//! Append kernels that rotate new keys, and queries beside them (rotary embedding, RoPE).
use crate::*;
use core::marker::PhantomData;

/// Rotates rows of `E` and then writes keys and values as the append kernel `A` does.
pub struct RotaryAppend<E, A>(PhantomData<(E, A)>);

impl<E: Element, A: Kernel<Params = AppendParams> + Line<Info = AppendInfo>> Line for RotaryAppend<E, A> {
    type Info = AppendInfo;
    const INFO: AppendInfo =
        AppendInfo { contract: Contract::of::<Self>(""), rounds: A::INFO.rounds, rotates: Some(E::DTYPE) };
}

impl<E: Element, A: Kernel<Params = AppendParams>> Kernel for RotaryAppend<E, A> {
    type Params = RotaryAppendParams;
    const TARGET: Target = A::TARGET;
    const THREADS: u32 = A::THREADS;
    const SMEM_BYTES: usize = 0;
    const BLOCKS_PER_SM: u32 = 4;
    fn grid(params: &RotaryAppendParams) -> [u32; 3] {
        A::grid(&params.append)
    }
}

/// Parameters of a kernel that rotates and appends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryAppendParams {
    /// The append. `parts` distributes pairs of parts; `heads` counts key heads, then query heads. The values
    /// have no chunks if the cache is latent.
    pub append: AppendParams,
    /// Queries: rows of one batch.
    pub q: Tensor,
    /// Rotated queries. May be `q`.
    pub rotated_q: Tensor,
    /// The angles of each token.
    pub angles: Angles,
    /// The pairs of parts of a row. The range of `pairs` is rotated.
    pub pairs: PartPairs,
    /// Key heads per token.
    pub key_heads: u32,
    /// 1 if adjacent columns rotate together, 0 if a column of the first half rotates with one of the second.
    pub interleaved: u32,
}

/// A table of cosines and sines, and the position of each token. The positions live in device memory, and the
/// host has not checked them. A kernel clamps them to the table's rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Angles {
    /// Device address of the first cosine, a multiple of 16.
    pub cos: u64,
    /// Device address of the first sine, a multiple of 16.
    pub sin: u64,
    /// Bytes from one position's angles to the next position's angles, a multiple of 16.
    pub row_bytes: u64,
    /// Device address of the first token's position, a multiple of a position's size.
    pub positions: u64,
    /// Rows of the table, at least 1.
    pub rows: u32,
    /// Number of angles per row, in eights, at least 1.
    pub eights: u32,
    /// Number of tokens that have a position, at least 1.
    pub tokens: u32,
    /// 1 if positions are i64, 0 if they are i32.
    pub wide_positions: u32,
    /// 1 if the table is f32, 0 if it has the tokens' dtype.
    pub wide: u32,
    /// Padding: 0.
    pub reserved: u32,
}
contract::no_padding! {
    RotaryAppendParams { append, q, rotated_q, angles, pairs, key_heads, interleaved }
    Angles {
        cos, sin, row_bytes, positions, rows, eights, tokens, wide_positions, wide, reserved
    }
}
