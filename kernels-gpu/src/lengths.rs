//! Clamps integers in device memory, which the host cannot check. With any values of these integers, each
//! access stays inside the tensors that the host has checked. The caller promises not to change the integers
//! during a launch: blocks, and threads that share copies, read them independently. (`attention-tile` clamps
//! the entries of block tables and the slots of a cache.)
use cuda_std::math::opaque;
use spec::{CuSeqlens, DecodeParams, Integers, PrefixParams, Sequences};
use tile::Warp;
use tile::global::GlobalInts;

/// Length `i`, clamped to `most`. A negative or missing length becomes 0.
#[inline(always)]
pub fn length(lengths: &Integers, i: u32, most: u32) -> u32 {
    (GlobalInts::new(lengths).get(i).max(0) as u32).min(most)
}

/// Whether length `i` exists and is positive. Kernels only count such lengths.
#[inline(always)]
pub fn is_some(lengths: &Integers, i: u32) -> bool {
    GlobalInts::new(lengths).get(i) > 0
}

/// Number of keys of the prefix of sequence `i`. This number may exceed the number of keys, and may be
/// negative.
#[inline(always)]
pub fn prefix(p: &PrefixParams, i: u32) -> i32 {
    match p.lengths.count() {
        0 => p.all.min(i32::MAX as u32) as i32,
        _ => GlobalInts::new(&p.lengths).nearest(i),
    }
}

/// The number of a sequence's keys, not yet clamped, in a decode kernel. The kernel loads the number long
/// before it uses the number.
#[derive(Clone, Copy)]
pub struct Unchecked(u32);

impl Unchecked {
    /// The number of keys of sequence `i`; 0 if the sequence does not exist. The parameters alone decide
    /// which integers exist, so no branch on them diverges.
    #[inline(always)]
    pub fn load(p: &DecodeParams, i: u32) -> Self {
        let DecodeParams { order, cache, .. } = p;
        let length = match order.lengths.base() {
            0 if i < order.lengths.count() => order.max_keys as i32,
            0 => 0,
            _ => GlobalInts::new(&order.lengths).get(i),
        };
        if order.starts.count() == 0 {
            return Unchecked(length as u32);
        }
        Unchecked(Span::load(&order.starts, i, cache.pages).cut(length).rows())
    }

    /// Returns this number if `is_taken` is true, otherwise 0.
    #[inline(always)]
    pub fn or_none(self, is_taken: bool) -> Self {
        if is_taken { self } else { Unchecked(0) }
    }

    /// The number that lane `lane` holds.
    #[inline(always)]
    pub fn of_lane(self, warp: Warp, lane: u32) -> Self {
        Unchecked(warp.shuffle(self.0, lane))
    }

    /// Returns the number, and hides its value from the compiler. The compiler therefore computes dependent
    /// values at their use, not at the load (see [`tile::Block::forget_thread`]).
    #[inline(always)]
    pub fn forget(self) -> Self {
        Unchecked(opaque(self.0))
    }

    /// The number of keys, clamped to `most`; 0 if the number is negative.
    #[inline(always)]
    pub fn clamped(self, most: u32) -> u32 {
        ((self.0 as i32).max(0) as u32).min(most)
    }
}

/// The offset of sequence `index`, not clamped. Kernels only compare the offset; they never use it as a row.
#[inline(always)]
pub fn start(cu_seqlens: &Integers, index: u32) -> u32 {
    GlobalInts::new(cu_seqlens).get(index) as u32
}

/// The number of the tile that is `from_end` tiles before the end of a mixed batch's `begins`
/// ([`spec::NumberTilesParams`]), if that tile exists. The order of work tiles begins with a head's last
/// tile, so the tiles that exist come first.
#[inline(always)]
pub fn numbered(begins: &Integers, of: &Sequences, from_end: u32) -> Option<u32> {
    start(begins, of.count).checked_sub(from_end)
}

/// The offset of sequence `index`, clamped to the rows of the tensor.
#[inline(always)]
pub fn offset(cu_seqlens: &CuSeqlens, index: u32) -> u32 {
    start(&cu_seqlens.offsets, index).min(cu_seqlens.rows)
}

/// The sequence of block `block` of `tile` rows, if the block has one. All lanes find the same sequence.
#[inline(always)]
pub fn sequence(of: &Sequences, cu_seqlens: &CuSeqlens, [block, tile]: [u32; 2], warp: Warp) -> Option<u32> {
    of.find(block, |first, step| {
        let sequence = first + warp.lane() * step;
        let begin = of.begin(sequence, start(&cu_seqlens.offsets, sequence), tile);
        warp.count(sequence < of.count && begin <= block)
    })
}

/// The rows of one sequence in a tensor of all sequences. All of these rows exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    first: u32,
    rows: u32,
}

impl Span {
    /// The rows from offset `index` to offset `index + 1`, clamped to a tensor of `rows` rows.
    #[inline(always)]
    pub fn load(cu_seqlens: &Integers, index: u32, rows: u32) -> Self {
        let starts = GlobalInts::new(cu_seqlens);
        Self::within(starts.get(index), starts.get(index + 1), rows)
    }

    /// The rows of sequence `index`, cut to the longest sequence's rows. Even a span without rows begins in
    /// the tensor, or at its end.
    #[inline(always)]
    pub fn of_sequence(cu_seqlens: &CuSeqlens, index: u32) -> Self {
        let [first, end] = [index, index + 1].map(|index| offset(cu_seqlens, index));
        Span { first, rows: end.saturating_sub(first).min(cu_seqlens.longest) }
    }

    /// The rows from the first sequence to the last; without offsets, all rows of the tensor.
    #[inline(always)]
    pub fn of_all(cu_seqlens: &CuSeqlens) -> Self {
        let CuSeqlens { offsets, rows, .. } = cu_seqlens;
        let starts = GlobalInts::new(offsets);
        match offsets.count() {
            0 => Self::upto(*rows),
            count => Self::within(starts.get(0), starts.get(count - 1), *rows),
        }
    }

    /// The first `rows` rows of a tensor that has at least `rows` rows.
    #[inline(always)]
    pub const fn upto(rows: u32) -> Self {
        Span { first: 0, rows }
    }

    /// The first row and the number of rows, as words that a warp can broadcast.
    #[inline(always)]
    pub fn words(self) -> [u32; 2] {
        [self.first, self.rows]
    }

    /// The span that has these [`Span::words`].
    #[inline(always)]
    pub fn of_words([first, rows]: [u32; 2]) -> Self {
        Span { first, rows }
    }

    /// The rows `first..end`, clamped to a tensor of `rows` rows. A negative row counts as a row behind the
    /// last one.
    #[inline(always)]
    fn within(first: i32, end: i32, rows: u32) -> Self {
        let (first, end) = (first as u32, (end as u32).min(rows));
        Span { first, rows: end.max(first) - first }
    }

    /// Returns the span in registers that ptxas may make uniform. ptxas alone does not know that all lanes
    /// loaded equal values (without this function, 128x32 at head dim 96 spills 8 bytes in the main loop).
    #[inline(always)]
    pub fn uniform(self, warp: Warp) -> Self {
        Span { first: warp.uniform(self.first), rows: warp.uniform(self.rows) }
    }

    /// This span, cut to the rows that sequence `index` uses, if `seqused` is present.
    #[inline(always)]
    pub fn used(self, seqused: &Integers, index: u32) -> Self {
        let used = GlobalInts::new(seqused);
        if used.is_empty() { self } else { self.cut(used.get(index)) }
    }

    /// This span, if it has 1 to `most` rows. In a mixed batch, the decode kernel takes the sequences with
    /// such spans.
    #[inline(always)]
    pub fn few(self, most: u32) -> Option<Self> {
        (1..=most).contains(&self.rows).then_some(self)
    }

    /// This span, if it has more than `few` rows. Prefill takes such sequences of a mixed batch.
    #[inline(always)]
    pub fn many(self, few: u32) -> Option<Self> {
        (self.rows > few).then_some(self)
    }

    /// This span, cut to its first `used` rows.
    #[inline(always)]
    pub fn cut(self, used: i32) -> Self {
        Span { rows: self.rows.min(used.max(0) as u32), ..self }
    }

    /// This span without its first `count` rows. The span must have at least `count` rows.
    #[inline(always)]
    pub fn skip(self, count: u32) -> Self {
        Span { first: self.first + count, rows: self.rows - count }
    }

    /// The first row.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.first
    }

    /// Number of rows.
    #[inline(always)]
    pub fn rows(self) -> u32 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_there_the_rows_exist() {
        const GARBAGE: [i32; 9] = [0, 1, 7, 99, 100, 101, -1, i32::MIN, i32::MAX];
        for (first, end) in GARBAGE.iter().flat_map(|first| GARBAGE.map(|end| (*first, end))) {
            let span = Span::within(first, end, 100);
            assert!(span.rows == 0 || span.first + span.rows <= 100, "{first}..{end}: {span:?}");
            if (0..=100).contains(&first) && (first..=100).contains(&end) {
                assert_eq!(span, Span { first: first as u32, rows: (end - first) as u32 });
            }
            for used in GARBAGE {
                let cut = span.cut(used);
                assert_eq!(cut.first, span.first);
                assert_eq!(cut.rows, span.rows.min(used.max(0) as u32), "{used} of {span:?}");
            }
        }
    }
}
