//! Kernels for mixed batches on a KV cache: queries are varlen, and some sequences have few queries while
//! others have many. Two kernels run on the same batch. Each kernel finds its sequences on the device: the
//! decode kernel takes the sequences of at most `most` queries, the prefill kernel takes the others.
use crate::forward::made_of;
use crate::*;
use core::marker::PhantomData;

/// Decode kernel `K` on the sequences of few queries.
pub struct FewQueries<K>(PhantomData<K>);

/// The combine kernel of [`FewQueries`], for launches without counters.
pub struct FewCombine<E, const D: usize>(PhantomData<E>);

/// Prefill kernel `K` on a KV cache, on the sequences of many queries.
pub struct ManyQueries<K>(PhantomData<K>);

/// Parameters of a [`FewQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FewParams {
    /// The decode parameters. `q`, `o` and `lse` have one batch with the rows of all sequences; blocks of
    /// rows, partial results and counters assume `most` queries per sequence.
    pub decode: DecodeParams,
    /// See [`VarlenParams::cu_seqlens_q`].
    pub cu_seqlens_q: Integers,
    /// The kernel takes the sequences of at most this number of queries, at least 1.
    pub most: u32,
    /// Padding: 0.
    pub reserved: u32,
}

/// Parameters of a [`ManyQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyParams<P = PagedParams> {
    /// The prefill parameters, with varlen queries. With these `sequences`, a kernel always searches for a
    /// block's sequence.
    pub paged: P,
    /// The mapping from query blocks to sequences.
    pub many: ManySequences,
}

/// The mapping from query blocks to the sequences of at least `least` queries. The first block of sequence
/// `b`, which starts at row `s`, has index `s / tile_m + s / least`, or `s / tile_m + b` if that numbering
/// gives fewer blocks. In both numberings, a sequence of `q >= least` queries has an index for each of its
/// blocks. If most sequences have one query, the first numbering leaves few empty blocks. If most sequences
/// are prompts, the second numbering does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManySequences {
    /// The kernel takes the sequences of at least this number of queries: [`FewParams::most`] + 1.
    pub least: FastDiv,
    /// 1 for the numbering `s / tile_m + b`, otherwise 0.
    pub by_sequence: u32,
}

impl ManySequences {
    /// The mapping for `count` sequences with `rows` rows in all, in tiles of `tile_m` rows, and the number
    /// of query blocks per head. Returns `None` if a number is 0, or if there are 2^30 sequences or 2^31
    /// blocks.
    pub fn new(count: u32, rows: u32, tile_m: u32, least: u32) -> Option<(Self, Sequences, u32)> {
        if count == 0 || count >= 1 << 30 || rows == 0 {
            return None;
        }
        let many =
            ManySequences { least: FastDiv::new(least)?, by_sequence: u32::from(rows / least > count) };
        let m_blocks = u64::from(rows / tile_m) + u64::from((rows / least).min(count));
        let m_blocks = u32::try_from(m_blocks.max(1)).ok().filter(|n| *n < 1 << 31)?;
        let step = 32u32.pow((count - 1).max(1).ilog(32));
        Some((many, Sequences { count, step, each: FastDiv::ONE }, m_blocks))
    }

    /// Index of the first query block of `sequence`, which starts at row `start`.
    #[inline(always)]
    pub fn begin(&self, sequence: u32, start: u32, tile_m: u32) -> u32 {
        let before = if self.by_sequence == 1 { sequence } else { self.least.div_rem(start).0 };
        (start / tile_m).wrapping_add(before)
    }
}

contract::no_padding! {
    FewParams { decode, cu_seqlens_q, most, reserved }
    ManyParams { paged, many }
    ManySequences { least, by_sequence }
}

impl<P: Scheduled> Scheduled for ManyParams<P> {
    fn order(&self) -> &TileOrder {
        self.paged.order()
    }
    fn blocks(&self) -> u32 {
        self.paged.blocks()
    }
}

made_of!(
    ManyQueries<K>: ManyParams<<K::Isa as IsaMarker>::Paged>,
    |p: &ManyParams<<K::Isa as IsaMarker>::Paged>| p.blocks(),
    { queries: Queries::Mixed, keys: Keys::Cache(PageKind::Rows) }
);

impl<E: Element, const D: usize> Kernel for FewCombine<E, D> {
    type Params = FewParams;
    const THREADS: u32 = <DecodeCombine<E, D>>::THREADS;
    const SMEM_BYTES: usize = <DecodeCombine<E, D>>::SMEM_BYTES;
    const BLOCKS_PER_SM: u32 = <DecodeCombine<E, D>>::BLOCKS_PER_SM;
    fn grid(params: &FewParams) -> [u32; 3] {
        [params.decode.order.blocks, 1, 1]
    }
}

impl<E: Element, const D: usize> Line for FewCombine<E, D> {
    type Info = DecodeCombineInfo;
    const INFO: DecodeCombineInfo =
        DecodeCombineInfo { contract: Contract::of::<Self>(""), ..<DecodeCombine<E, D>>::INFO };
}

impl<K: Kernel<Params = DecodeParams>> Kernel for FewQueries<K> {
    type Params = FewParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const BLOCKS_PER_SM: u32 = K::BLOCKS_PER_SM;
    fn grid(params: &FewParams) -> [u32; 3] {
        K::grid(&params.decode)
    }
}

impl<K: AttnKernel + Kernel<Params = DecodeParams>> Line for FewQueries<K> {
    type Info = AttnInfo;
    const INFO: AttnInfo =
        AttnInfo { contract: Contract::of::<Self>(""), queries: Queries::Mixed, ..K::INFO };
}

impl<K: AttnKernel + Kernel<Params = DecodeParams>> AttnKernel for FewQueries<K> {
    type Isa = K::Isa;
    type Mask = K::Mask;
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    /// Distributes a head's query blocks like the device, and checks that each block of a sequence of at
    /// least `least` queries has one index, and that an index has at most one block.
    fn check(lengths: &[u32], more: u32, tile_m: u32, least: u32) {
        let starts: Vec<u32> =
            lengths.iter().scan(0, |sum, n| Some(core::mem::replace(sum, *sum + n))).collect();
        let rows = lengths.iter().sum::<u32>() + more;
        let (many, sequences, m_blocks) =
            ManySequences::new(lengths.len() as u32, rows, tile_m, least).expect("valid");
        let mut taken: Vec<_> = lengths
            .iter()
            .map(|n| vec![0; if *n >= least { n.div_ceil(tile_m) as usize } else { 0 }])
            .collect();
        for m_block in 0..m_blocks {
            let begin = |b: u32| many.begin(b, starts[b as usize], tile_m);
            let found = sequences.find(m_block, |first, step| {
                let looked_at = (0..32).map(|lane| first + lane * step).filter(|b| *b < sequences.count);
                looked_at.filter(|b| begin(*b) <= m_block).count() as u32
            });
            let found = found.expect("the first sequence begins with block 0");
            assert_eq!(sequences.find_by_halves(m_block, |b| begin(b) <= m_block), found);
            if let Some(taken) = taken[found as usize].get_mut((m_block - begin(found)) as usize) {
                *taken += 1;
            }
        }
        assert!(
            taken.iter().flatten().all(|n| *n == 1),
            "{lengths:?}, tiles of {tile_m}, {least}: {taken:?}"
        );
    }

    #[test]
    fn every_tile_of_many_queries_once() {
        for (tile_m, least) in [(32, 2), (64, 5), (128, 5), (128, 17), (128, 130)] {
            for count in [1, 2, 31, 32, 33, 65, 1025] {
                let sets: [&[u32]; 6] = [
                    &[1],
                    &[0, 700],
                    &[1, 0, 4, 5, 700, 6],
                    &[least, least - 1],
                    &[128, 127, 1, 1, 1, 129],
                    &[64, 5, 0, 0, 65],
                ];
                for set in sets {
                    let lengths: Vec<u32> = set.iter().copied().cycle().take(count).collect();
                    if lengths.iter().sum::<u32>() > 0 {
                        check(&lengths, 0, tile_m, least);
                    }
                    check(&lengths, 1000, tile_m, least);
                }
            }
        }
    }

    #[test]
    fn single_queries_and_prompts_leave_few_blocks() {
        let blocks = |count, rows| ManySequences::new(count, rows, 128, 5).map(|(_, _, blocks)| blocks);
        assert_eq!(blocks(256, 256), Some(2 + 51));
        assert_eq!(blocks(256, 1), Some(1));
        assert_eq!(blocks(8, 8 * 2048), Some(8 * 16 + 8));
        assert_eq!(blocks(0, 1), None);
    }
}
