//! Varlen kernels: one tensor holds the rows of all sequences, with offsets on the device. This file also
//! contains the mapping from query blocks to sequences. The host computes the grid from the mapping. A thread
//! block finds its sequence with the mapping.
use crate::forward::made_of;
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` on varlen tensors.
pub struct Varlen<K>(PhantomData<K>);

/// Parameters of a [`Varlen`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VarlenParams<F = FwdParams> {
    /// The forward parameters, with one batch of all sequences' rows. `sequences` assigns the query blocks of
    /// its heads to sequences; `window.shift` is unused.
    pub forward: F,
    /// Offsets of the sequences in Q: sequence `b` has the rows from offset `b` to offset `b + 1`.
    pub cu_seqlens_q: Integers,
    /// Offsets of the sequences in K and V.
    pub cu_seqlens_k: Integers,
    /// Number of valid keys of each sequence; empty if all keys are valid.
    pub seqused_k: Integers,
    /// The mapping from query blocks to sequences.
    pub sequences: Sequences,
    /// 1 for bottom-right alignment, 0 for top-left.
    pub bottom_right: u32,
}

no_variant!(VarlenParams<F>, F);

impl<F> AsRef<F> for VarlenParams<F> {
    #[inline(always)]
    fn as_ref(&self) -> &F {
        &self.forward
    }
}

impl<F: Scheduled> Scheduled for VarlenParams<F> {
    fn order(&self) -> &TileOrder {
        self.forward.order()
    }
    fn blocks(&self) -> u32 {
        self.forward.blocks()
    }
}

made_of!(
    Varlen<K>: K::OnVarlen,
    |p: &K::OnVarlen| p.blocks(),
    { queries: Queries::Varlen, keys: K::INFO.keys.of_sequences() }
);

/// The mapping from query blocks of a varlen head to sequences. The first block of sequence `b`, which starts
/// at row `s`, has index `s / tile_m + b`. The first block has index `b * each` instead if this numbering
/// gives fewer blocks; `each` is the longest sequence's number of blocks. Neither numbering needs a sum over
/// earlier sequences, and both increase with `b`. Some indices belong to no sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Number of sequences.
    pub count: u32,
    /// Distance between the sequences that a search probes first: a power of 32, or 0 if no search is needed,
    /// because every sequence has `each` blocks.
    pub step: u32,
    /// Query blocks of the longest sequence.
    pub each: FastDiv,
}
contract::no_padding! {
    VarlenParams<FwdParams> { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right }
    VarlenParams<HopperParams<RaggedMap>> {
        forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right
    }
    Sequences { count, step, each }
}

impl Sequences {
    /// The mapping of tensors that are not varlen. No kernel uses it.
    pub const NONE: Self = Sequences { count: 0, step: 0, each: FastDiv::ONE };

    /// The mapping by rows, whatever the longest sequence is, and its number of blocks per head. Returns
    /// `None` if there are no sequences, 2^30 sequences, or 2^31 blocks.
    pub fn by_rows(count: u32, rows: u32, tile: u32) -> Option<(Self, u32)> {
        let blocks = (rows / tile).checked_add(count).filter(|blocks| *blocks < 1 << 31)?;
        let levels = count.saturating_sub(1).max(1).ilog(32);
        let of_all = Sequences { count, step: 32_u32.pow(levels), each: FastDiv::ONE };
        (0 < count && count < 1 << 30).then_some((of_all, blocks))
    }

    /// The mapping for `count` sequences of at most `longest` queries, with `rows` rows in all, in tiles of
    /// `tile_m` rows, and the number of query blocks per head. Returns `None` if a number is 0, or if there
    /// are 2^30 sequences or 2^31 blocks.
    pub fn new(count: u32, longest: u32, rows: u32, tile_m: u32) -> Option<(Self, u32)> {
        let each = longest.div_ceil(tile_m);
        let [even, uneven] =
            [u64::from(count) * u64::from(each), u64::from(rows / tile_m) + u64::from(count)];
        let m_blocks = u32::try_from(even.min(uneven)).ok().filter(|n| *n > 0 && *n < 1 << 31)?;
        let levels = (count - 1).max(1).ilog(32);
        let step = if even <= uneven { 0 } else { 32u32.pow(levels) };
        (count < 1 << 30).then_some((Sequences { count, step, each: FastDiv::new(each)? }, m_blocks))
    }

    /// Index of the first query block of `sequence`, which starts at row `start`.
    #[inline(always)]
    pub const fn begin(&self, sequence: u32, start: u32, tile_m: u32) -> u32 {
        if self.step == 0 { sequence * self.each.get() } else { start / tile_m + sequence }
    }

    /// The sequence of query block `m_block`, if there is one. `begun(first, step)` counts how many of the 32
    /// sequences `first`, `first + step`, .. exist and begin at or before `m_block`.
    #[inline(always)]
    pub fn find(&self, m_block: u32, mut begun: impl FnMut(u32, u32) -> u32) -> Option<u32> {
        if self.step == 0 {
            return Some(self.each.div_rem(m_block).0);
        }
        let (mut first, mut step) = (0, self.step);
        while step > 0 {
            first += begun(first, step).checked_sub(1)? * step;
            step /= 32;
        }
        Some(first)
    }

    /// Like [`Sequences::find`], by bisection. `begun` returns whether a sequence begins at or before
    /// `m_block`. For an index that belongs to no sequence, the result is any sequence.
    #[inline(always)]
    pub fn find_by_halves(&self, m_block: u32, begun: impl Fn(u32) -> bool) -> u32 {
        if self.step == 0 {
            return self.each.div_rem(m_block).0;
        }
        // Invariant: sequence `after` has not begun. Sequence `first` has begun, unless no sequence has
        // begun.
        let (mut first, mut after) = (0, self.count);
        while after - first > 1 {
            let middle = first + (after - first) / 2;
            if begun(middle) { first = middle } else { after = middle }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    /// Distributes a head's query blocks like the device, and checks the sequences of these blocks.
    fn check(lengths: &[u32], longest: u32, rows: u32, tile_m: u32) {
        let starts: Vec<u32> =
            lengths.iter().scan(0, |sum, n| Some(core::mem::replace(sum, *sum + n))).collect();
        let (sequences, m_blocks) =
            Sequences::new(lengths.len() as u32, longest, rows, tile_m).expect("valid");
        let mut taken: Vec<_> = lengths.iter().map(|n| vec![0; n.div_ceil(tile_m) as usize]).collect();
        for m_block in 0..m_blocks {
            let begin = |b: u32| sequences.begin(b, starts[b as usize], tile_m);
            let found = sequences.find(m_block, |first, step| {
                let looked_at = (0..32).map(|lane| first + lane * step).filter(|b| *b < sequences.count);
                looked_at.filter(|b| begin(*b) <= m_block).count() as u32
            });
            assert_eq!(Some(sequences.find_by_halves(m_block, |b| begin(b) <= m_block)), found);
            let sequence = found.expect("the first sequence begins with block 0");
            if let Some(taken) = taken[sequence as usize].get_mut((m_block - begin(sequence)) as usize) {
                *taken += 1;
            }
        }
        assert!(
            taken.iter().flatten().all(|n| *n == 1),
            "{lengths:?} of {rows}, tiles of {tile_m}: {taken:?}"
        );
        let most = lengths.len() as u32 * longest.div_ceil(tile_m);
        assert!(m_blocks <= most.min(rows / tile_m + lengths.len() as u32));
    }

    #[test]
    fn every_tile_of_every_sequence_once() {
        for tile_m in [32, 64, 128] {
            for count in [1, 2, 31, 32, 33, 64, 65, 1024, 1025] {
                let cycle =
                    |lengths: &[u32]| -> Vec<u32> { lengths.iter().copied().cycle().take(count).collect() };
                let one_long = (0..count).map(|b| if b == count / 2 { 1000 } else { 3 }).collect();
                let sets = [
                    cycle(&[128]),
                    cycle(&[0]),
                    cycle(&[1, 0, 0, 65, 127, 200, 64]),
                    cycle(&[500, 1]),
                    one_long,
                ];
                for lengths in sets {
                    let (sum, longest) =
                        (lengths.iter().sum::<u32>(), lengths.iter().max().copied().unwrap_or(0));
                    // The bounds may exceed the real lengths, because a CUDA graph is captured for the
                    // maximum.
                    for (longest, rows) in [(longest.max(1), sum), (longest + 77, sum + 1000)] {
                        check(&lengths, longest, rows, tile_m);
                    }
                }
            }
        }
    }

    #[test]
    fn equal_lengths_leave_nobody_idle() {
        let blocks =
            |count, longest, rows| Sequences::new(count, longest, rows, 128).map(|(_, m_blocks)| m_blocks);
        assert_eq!(blocks(64, 128, 64 * 128), Some(64));
        assert_eq!(blocks(8, 2048, 8 * 2048), Some(128));
        assert_eq!(
            blocks(32, 32768, 31 * 1024 + 32768),
            Some(31 * 8 + 256 + 32),
            "one block a sequence too many"
        );
        assert_eq!(blocks(0, 1, 1), None);
        assert_eq!(blocks(1 << 30, 1, 1), None);
    }
}
