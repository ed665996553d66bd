//! Integers that stand on the device and that nobody has checked. What is made of them here is right whatever
//! they are: every access stays in the tensors that the host was shown. While a launch runs they stand still,
//! as its caller has promised: blocks, and threads that share copies, read them each for itself. (What stands
//! in a cache's table is clamped where it is read, and a slot that a cache has not is none, in `tile`.)
use cuda_std::math::opaque;
use spec::{DecodeParams, Integers, PrefixParams};
use tile::Warp;
use tile::global::GlobalInts;

/// Length `i`: at most `most`, and 0 where the number is negative or there is none.
#[inline(always)]
pub fn length(lengths: &Integers, i: u32, most: u32) -> u32 {
    (GlobalInts::new(lengths).get(i).max(0) as u32).min(most)
}

/// Keys of the prefix of sequence `i`; it may exceed the sequence's keys, or be below 0.
#[inline(always)]
pub fn prefix(p: &PrefixParams, i: u32) -> i32 {
    match p.lengths.count {
        0 => p.all.min(i32::MAX as u32) as i32,
        _ => GlobalInts::new(&p.lengths).nearest(i),
    }
}

/// Keys of a sequence in decoding, not yet clamped: loaded long before they are needed.
#[derive(Clone, Copy)]
pub struct Unchecked(u32);

impl Unchecked {
    /// Keys of sequence `i`; 0 where there is no such sequence. Which integers there are follows from
    /// parameters alone, so that no branch on it diverges.
    #[inline(always)]
    pub fn load(p: &DecodeParams, i: u32) -> Self {
        let DecodeParams { order, cache, .. } = p;
        let told = match order.lengths.base {
            0 if i < order.lengths.count => order.max_keys as i32,
            0 => 0,
            _ => GlobalInts::new(&order.lengths).get(i),
        };
        if order.starts.count == 0 {
            return Unchecked(told as u32);
        }
        Unchecked(Span::load(&order.starts, i, cache.pages).cut(told).rows())
    }

    /// This length if `is_taken`; otherwise 0.
    #[inline(always)]
    pub fn or_none(self, is_taken: bool) -> Self {
        if is_taken { self } else { Unchecked(0) }
    }

    /// That of lane `lane`.
    #[inline(always)]
    pub fn of_lane(self, warp: Warp, lane: u32) -> Self {
        Unchecked(warp.shuffle(self.0, lane))
    }

    /// The same, of which the compiler knows nothing: what follows from it is computed where it is needed,
    /// not where it is loaded, as [`tile::Block::forget_thread`] says.
    #[inline(always)]
    pub fn forget(self) -> Self {
        Unchecked(opaque(self.0))
    }

    /// At most `most`, and 0 where the number is negative.
    #[inline(always)]
    pub fn clamped(self, most: u32) -> u32 {
        ((self.0 as i32).max(0) as u32).min(most)
    }
}

/// Where sequence `index` begins, as it stands there: to be compared, not to be taken for a row.
#[inline(always)]
pub fn start(cu_seqlens: &Integers, index: u32) -> u32 {
    GlobalInts::new(cu_seqlens).get(index) as u32
}

/// Rows of one sequence among those of all: if there are any, they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    first: u32,
    rows: u32,
}

impl Span {
    /// Rows of sequence `index` by the starts of all sequences, among `rows` of all.
    #[inline(always)]
    pub fn load(cu_seqlens: &Integers, index: u32, rows: u32) -> Self {
        let starts = GlobalInts::new(cu_seqlens);
        Self::within(starts.get(index), starts.get(index + 1), rows)
    }

    /// The first `rows`, all of which exist.
    #[inline(always)]
    pub fn upto(rows: u32) -> Self {
        Span { first: 0, rows }
    }

    /// The first and how many, to be told to others.
    #[inline(always)]
    pub fn words(self) -> [u32; 2] {
        [self.first, self.rows]
    }

    /// What [`Span::words`] said.
    #[inline(always)]
    pub fn of_words([first, rows]: [u32; 2]) -> Self {
        Span { first, rows }
    }

    /// From `first` to before `end`, as far as there are `rows`. What is negative lies behind all of them,
    /// and behind them are none.
    #[inline(always)]
    fn within(first: i32, end: i32, rows: u32) -> Self {
        let (first, end) = (first as u32, (end as u32).min(rows));
        Span { first, rows: end.max(first) - first }
    }

    /// The same, which the assembler may keep in uniform registers: of a loaded value it does not know that
    /// all lanes have it (128x32 at head dim 96: 8 bytes spilled in the main loop, and none so).
    #[inline(always)]
    pub fn uniform(self, warp: Warp) -> Self {
        Span { first: warp.uniform(self.first), rows: warp.uniform(self.rows) }
    }

    /// At most as many as sequence `index` has used, if that is told.
    #[inline(always)]
    pub fn used(self, seqused: &Integers, index: u32) -> Self {
        let used = GlobalInts::new(seqused);
        if used.is_empty() { self } else { self.cut(used.get(index)) }
    }

    /// This span if it has 1 to `most` rows: decode's part of a mixed batch.
    #[inline(always)]
    pub fn few(self, most: u32) -> Option<Self> {
        (1..=most).contains(&self.rows).then_some(self)
    }

    /// This span if it has more than `few` rows: prefill's part of a mixed batch.
    #[inline(always)]
    pub fn many(self, few: u32) -> Option<Self> {
        (self.rows > few).then_some(self)
    }

    /// At most the first `used` of them.
    #[inline(always)]
    fn cut(self, used: i32) -> Self {
        Span { rows: self.rows.min(used.max(0) as u32), ..self }
    }

    /// Those from the `count`-th on, of which there must be as many.
    #[inline(always)]
    pub fn skip(self, count: u32) -> Self {
        Span { first: self.first + count, rows: self.rows - count }
    }

    /// The first.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.first
    }

    /// How many.
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
