//! Masks: the keys that a query sees. A mask is FlexAttention's `mask_mod` (Dong et al., 2024), compiled
//! ahead of time.
//!
//! A mask is an interval of keys per query. Masking therefore costs a compare and a select per element, and
//! blocks that every row sees completely cost nothing. A mask may have holes inside its intervals.
use crate::lengths;
use crate::rows::{Rows, Sequence};
use attention_tile::load_bits;
use core::ops::Range;
use spec::{
    And, Bits, BitsParams, Causal, Chunked, ChunkedParams, Full, MaskKind, MaskMarker, Prefix, PrefixParams,
    Windowed,
};

/// The keys that a query sees. A kernel loads a value of this type for a work tile.
///
/// The functions receive a query's position `p` among the keys of its sequence, on dense, varlen and paged
/// tensors alike. Query `q` of a sequence has position `q + shift` ([`Sequence::shift`]).
///
/// The functions may branch, but the lanes of a warp then run both sides, so selects are faster. No function
/// receives a warp or a block, so none can make a warp diverge around a barrier.
pub trait MaskMod: MaskMarker {
    /// Whether [`MaskMod::keys`] may begin after key 0. If this constant is false, the kernel ignores the
    /// interval's start.
    const LEFT: bool = true;
    /// Whether [`MaskMod::sees`] may be false. If this constant is false, the kernel does not call that
    /// function.
    const HOLES: bool = true;
    /// Whether every query sees every key of its sequence.
    const SEES_ALL: bool = false;

    /// Loads the data that the mask needs for a sequence and a head.
    fn load(params: &Self::Params, of: &Sequence) -> Self;

    /// An interval that contains all keys that the query at position `p` sees. The interval may begin below 0
    /// and end behind the last key. From one position to the next, neither bound may decrease. The kernel
    /// skips blocks outside of all intervals.
    #[inline(always)]
    fn keys(&self, _p: i32) -> Range<i32> {
        0..i32::MAX
    }

    /// The positions of the queries in whose interval key `k` lies, if the mask has a formula for them: the
    /// inverse of [`MaskMod::keys`]. Without a formula, backward kernels bisect.
    #[inline(always)]
    fn queries(&self, _k: i32) -> Option<Range<i32>> {
        None
    }

    /// Keys without holes: every query of the work tile sees these keys if they are in the query's interval.
    /// Blocks of such keys need no mask.
    #[inline(always)]
    fn whole(&self) -> Range<i32> {
        if Self::HOLES { 0..0 } else { 0..i32::MAX }
    }

    /// Whether the query at position `p` sees key `k` of its interval. Kernels also call this function for
    /// queries and keys behind the last ones, and ignore the result.
    #[inline(always)]
    fn sees(&self, _p: i32, _k: i32) -> bool {
        true
    }
}

/// The keys of a row's interval. The interval may begin below 0, and it ends at or before the last key.
#[inline(always)]
pub fn keys_of<M: MaskMod>(mask: M, rows: &Rows, row: u32) -> Range<i32> {
    if matches!(M::KIND, MaskKind::Causal) {
        // The order of this sum matters: with another order, 32x128_k4 of head dim 128 spills (sm_90).
        return 0..(row as i32 + 1 + rows.window.shift).min(rows.k_len as i32);
    }
    let Range { start, end } = mask.keys(rows.position(row));
    start..end.min(rows.k_len as i32)
}

impl MaskMod for Full {
    const LEFT: bool = false;
    const HOLES: bool = false;
    const SEES_ALL: bool = true;
    #[inline(always)]
    fn load(_: &(), _: &Sequence) -> Self {
        Full
    }
}

impl MaskMod for Causal {
    const LEFT: bool = false;
    const HOLES: bool = false;
    #[inline(always)]
    fn load(_: &(), _: &Sequence) -> Self {
        Causal
    }
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    #[inline(always)]
    fn queries(&self, k: i32) -> Option<Range<i32>> {
        Some(k..i32::MAX)
    }
}

impl MaskMod for Windowed {
    const HOLES: bool = false;
    #[inline(always)]
    fn load(_: &(), of: &Sequence) -> Self {
        let [left, right] = of.window::<Windowed>();
        Windowed { left, right }
    }
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        p - self.left..p.saturating_add(self.right + 1)
    }
    #[inline(always)]
    fn queries(&self, k: i32) -> Option<Range<i32>> {
        Some(k - self.right..k.saturating_add(self.left + 1))
    }
}

impl MaskMod for Prefix {
    const LEFT: bool = false;
    const HOLES: bool = false;
    #[inline(always)]
    fn load(p: &PrefixParams, of: &Sequence) -> Self {
        Prefix { keys: lengths::prefix(p, of.index) }
    }
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        0..(p + 1).max(self.keys)
    }
}

impl MaskMod for Chunked {
    const HOLES: bool = false;
    #[inline(always)]
    fn load(p: &ChunkedParams, _: &Sequence) -> Self {
        Chunked { chunk: p.chunk }
    }
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        let (_, within) = self.chunk.div_rem(p.max(0) as u32);
        p.max(0) - within as i32..p + 1
    }
}

impl MaskMod for Bits {
    const LEFT: bool = false;
    #[inline(always)]
    fn load(p: &BitsParams, of: &Sequence) -> Self {
        Bits::of(p, of.at, of.keys as u32, of.shift)
    }
    #[inline(always)]
    fn whole(&self) -> Range<i32> {
        0..self.first_key() as i32
    }
    #[inline(always)]
    fn sees(&self, p: i32, k: i32) -> bool {
        let bit = (k as u32).wrapping_sub(self.first_key());
        let byte = load_bits(self, p, bit / 8);
        (k as u32) < self.first_key() || byte >> (bit % 8) & 1 == 1
    }
}

/// A query sees the keys that both masks show (FlexAttention's `and_masks`).
impl<A: MaskMod, B: MaskMod> MaskMod for (A, B) {
    const LEFT: bool = A::LEFT || B::LEFT;
    const HOLES: bool = A::HOLES || B::HOLES;
    const SEES_ALL: bool = A::SEES_ALL && B::SEES_ALL;
    #[inline(always)]
    fn load(And { a, b }: &Self::Params, of: &Sequence) -> Self {
        (A::load(a, of), B::load(b, of))
    }
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        let (a, b) = (self.0.keys(p), self.1.keys(p));
        let start = match (A::LEFT, B::LEFT) {
            (true, true) => a.start.max(b.start),
            (true, false) => a.start,
            (false, _) => b.start,
        };
        start..a.end.min(b.end)
    }
    #[inline(always)]
    fn whole(&self) -> Range<i32> {
        let (a, b) = (self.0.whole(), self.1.whole());
        a.start.max(b.start)..a.end.min(b.end)
    }
    #[inline(always)]
    fn sees(&self, p: i32, k: i32) -> bool {
        (!A::HOLES || self.0.sees(p, k)) && (!B::HOLES || self.1.sees(p, k))
    }
}
