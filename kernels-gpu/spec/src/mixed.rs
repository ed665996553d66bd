//! Kernels for mixed batches on a KV cache: varlen queries, few of some sequences and many of others. Two
//! kernels run on one batch. Each finds on the device which sequences it takes: decode those of at most
//! `most` queries, prefill the others.
use crate::forward::made_of;
use crate::*;
use core::marker::PhantomData;

/// Decode kernel `K` on the sequences of few queries.
pub struct FewQueries<K>(PhantomData<K>);

/// Prefill kernel `K` on a KV cache, on the sequences of many queries.
pub struct ManyQueries<K>(PhantomData<K>);

/// Parameters of a [`FewQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FewParams {
    /// The decode parameters. `q`, `o` and `lse` have one batch of all sequences' rows; blocks of rows,
    /// partial results and counters count `most` queries per sequence.
    pub decode: DecodeParams,
    /// As [`VarlenParams::cu_seqlens_q`].
    pub cu_seqlens_q: Integers,
    /// Maximum of queries of the sequences that the kernel takes, at least 1.
    pub most: u32,
    /// 0.
    pub reserved: u32,
}

/// Parameters of a [`ManyQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyParams<P = PagedParams> {
    /// The prefill parameters, with varlen queries. `sequences` always searches ([`ManySequences`]).
    pub paged: P,
    /// The least number of queries of the sequences that the kernel takes: [`FewParams::most`] + 1.
    pub least: FastDiv,
    /// 0.
    pub reserved: [u32; 1],
}

/// The mapping from query blocks to the sequences of at least `least` queries. The blocks of a sequence that
/// starts at row `s` start at index `s / tile_m + s / least`. A sequence of `q >= least` queries has at least
/// `q / tile_m + 1` indices, and single queries leave few empty blocks.
#[derive(Clone, Copy, Debug)]
pub struct ManySequences;

impl ManySequences {
    /// `count` sequences with `rows` rows in all, in tiles of `tile_m`; and the number of query blocks per
    /// head. `None` if a number is 0, or there are 2^30 sequences or 2^31 blocks.
    pub fn new(count: u32, rows: u32, tile_m: u32, least: u32) -> Option<(Sequences, u32)> {
        if count == 0 || count >= 1 << 30 || rows == 0 || least == 0 {
            return None;
        }
        let m_blocks = u64::from(rows / tile_m) + u64::from(rows / least);
        let m_blocks = u32::try_from(m_blocks.max(1)).ok().filter(|n| *n < 1 << 31)?;
        let step = 32u32.pow((count - 1).max(1).ilog(32));
        Some((Sequences { count, step, each: FastDiv::ONE }, m_blocks))
    }

    /// Index of the first query block of the sequence that starts at row `start`.
    #[inline(always)]
    pub fn begin(start: u32, tile_m: u32, least: &FastDiv) -> u32 {
        (start / tile_m).wrapping_add(least.div_rem(start).0)
    }
}
