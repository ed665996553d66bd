//! Masks and scores with the roles of queries and keys exchanged: the queries that see a key.
use crate::rows::{Rows, Sequence};
use crate::variant::mask::MaskMod;
use crate::variant::score::ScoreMod;
use core::ops::Range;
use spec::{MaskMarker, ScoreKinds, ScoreMarker, Window};

/// Mask or scores `M` of the transposed scores, whose rows are keys and whose columns are queries.
///
/// From one query to the next, neither bound of a query's keys decreases. The queries that see a key are
/// therefore an interval, too, and from one key to the next neither of its bounds decreases. Bisection finds
/// them or, with `BY_FORMULA`, the mask's own formula if it has one, which takes fewer registers.
#[derive(Clone, Copy)]
pub struct Transposed<M, const BY_FORMULA: bool = false> {
    of: M,
    /// Number of queries, and the position of query 0 among the keys.
    queries: i32,
    shift: i32,
}

impl<M: MaskMarker, const BY_FORMULA: bool> MaskMarker for Transposed<M, BY_FORMULA> {
    const READS_WINDOW: bool = M::READS_WINDOW;
    type Params = M::Params;
}

impl<M, const BY_FORMULA: bool> Transposed<M, BY_FORMULA> {
    /// Mask or scores `turned` of the sequence `of`, turned around.
    #[inline(always)]
    pub fn new(turned: M, of: &Sequence) -> Self {
        Transposed { of: turned, queries: of.queries, shift: of.shift }
    }

    /// The position and the key of the score at row `p + shift` and column `query`.
    #[inline(always)]
    fn turn(&self, p: i32, query: i32) -> [i32; 2] {
        [query + self.shift, p + self.shift]
    }
}

impl<M: MaskMod, const BY_FORMULA: bool> Transposed<M, BY_FORMULA> {
    /// The first query for which `is_behind(position)` is true, or the number of queries. Once it is true, it
    /// stays true. All lanes take equally many steps.
    #[inline(always)]
    fn first(&self, is_behind: impl Fn(i32) -> bool) -> i32 {
        let highest = (1u32 << 31).checked_shr((self.queries as u32).leading_zeros());
        let (mut before, mut step) = (0, highest.unwrap_or(0));
        while step > 0 {
            let next = before + step as i32;
            if next <= self.queries && !is_behind(next - 1 + self.shift) {
                before = next;
            }
            step >>= 1;
        }
        before
    }
}

impl<M: MaskMod, const BY_FORMULA: bool> MaskMod for Transposed<M, BY_FORMULA> {
    const LEFT: bool = !M::SEES_ALL;
    const HOLES: bool = M::HOLES;
    const SEES_ALL: bool = M::SEES_ALL;

    #[inline(always)]
    fn load(params: &M::Params, of: &Sequence) -> Self {
        Transposed::new(M::load(params, of), of)
    }

    /// The queries that see the key at row `p + shift`.
    #[inline(always)]
    fn keys(&self, p: i32) -> Range<i32> {
        if M::SEES_ALL {
            return 0..i32::MAX;
        }
        let key = p + self.shift;
        if BY_FORMULA && let Some(Range { start, end }) = self.of.queries(key) {
            return start - self.shift..end.saturating_sub(self.shift);
        }
        let end = if M::LEFT { self.first(|p| self.of.keys(p).start > key) } else { i32::MAX };
        self.first(|p| self.of.keys(p).end > key)..end
    }

    #[inline(always)]
    fn sees(&self, p: i32, query: i32) -> bool {
        let [p, k] = self.turn(p, query);
        self.of.sees(p, k)
    }
}

impl<S: ScoreMarker> ScoreMarker for Transposed<S> {
    const KINDS: ScoreKinds = S::KINDS;
    type Params = S::Params;
}

impl<S: ScoreMod> ScoreMod for Transposed<S> {
    const CHANGES: bool = S::CHANGES;
    const SCALED: bool = S::SCALED;
    const ADDITIVE: bool = S::ADDITIVE;

    #[inline(always)]
    fn load(params: &S::Params, of: &Sequence) -> Self {
        Transposed::new(S::load(params, of), of)
    }
    #[inline(always)]
    fn score(&self, s: f32, p: i32, query: i32) -> f32 {
        let [p, k] = self.turn(p, query);
        self.of.score(s, p, k)
    }
    #[inline(always)]
    fn gradient(&self, s: f32, p: i32, query: i32) -> f32 {
        let [p, k] = self.turn(p, query);
        self.of.gradient(s, p, k)
    }
}

impl Rows {
    /// The rows of the transposed scores: keys `first..first + tile`. The columns are the queries, padded to
    /// tiles of `tile_n`, because padding has no weight. With the shift, the distances of rows and columns
    /// are those of keys and queries.
    #[inline(always)]
    pub(crate) fn transposed(
        [first, tile]: [u32; 2],
        [q_len, k_len]: [u32; 2],
        tile_n: u32,
        window: Window,
        of: [u32; 2],
    ) -> Self {
        let window = Window { shift: -window.shift, ..window };
        Rows { first, tile, q_len: k_len, k_len: q_len.next_multiple_of(tile_n), window, of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::sequence;
    use crate::variant::blocks::BlockRange;
    use crate::variant::mask::keys_of;
    use spec::{Causal, Chunked, FastDiv, Full, Prefix, Windowed};

    /// Compares the queries of each key, and the blocks of a tile of keys, with the keys of each query.
    fn check<M: MaskMod>(mask: M, [queries, keys]: [u32; 2], shift: i32) {
        let of = Sequence { shift, ..sequence(0, 0, [queries, keys], 1.0) };
        check_turned((mask, Transposed::<_, false>::new(mask, &of)), [queries, keys], shift);
        check_turned((mask, Transposed::<_, true>::new(mask, &of)), [queries, keys], shift);
    }

    /// [`check`] of a mask and of the mask turned around.
    fn check_turned<M: MaskMod>((mask, turned): (M, impl MaskMod), [queries, keys]: [u32; 2], shift: i32) {
        let tile_n = 16;
        let window = Window { shift, left: 0, right: 0 };
        let name = std::any::type_name::<M>();
        for first in (0..keys).step_by(32) {
            let rows = Rows::transposed([first, 32], [queries, keys], tile_n, window, [0; 2]);
            let range = BlockRange::of(turned, &rows, tile_n);
            for (key, query) in (first..keys.min(first + 32)).flat_map(|k| (0..queries).map(move |q| (k, q)))
            {
                let (p, k, q) = (query as i32 + shift, key as i32, query as i32);
                let interval = mask.keys(p);
                let start = if M::LEFT { interval.start } else { 0 };
                let sees = M::SEES_ALL || (start..interval.end).contains(&k);
                let at =
                    format_args!("{name}: key {key}, query {query} of {queries} x {keys}, shift {shift}");
                assert_eq!(keys_of(turned, &rows, key).contains(&q), sees, "{at}");
                let block = query / tile_n;
                assert!(!sees || (range.start..range.end).contains(&block), "{at}: {range:?}");
                let is_interior = (range.interior.0..range.interior.1).contains(&block);
                assert!(sees || !is_interior, "{at}: {range:?}");
            }
        }
    }

    #[test]
    fn queries_are_those_that_see_the_key() {
        for lens @ [queries, keys] in [[1, 1], [17, 64], [64, 17], [40, 100], [100, 40], [33, 33]] {
            for shift in [0, keys as i32 - queries as i32] {
                check(Full, lens, shift);
                check(Causal, lens, shift);
                for (left, right) in [(0, 0), (5, 3), (20, Window::UNBOUNDED), (70, 1)] {
                    check(Windowed { left, right }, lens, shift);
                }
                for chunk in [1, 16, 50].map(|chunk| FastDiv::new(chunk).expect("not 0")) {
                    check(Chunked { chunk }, lens, shift);
                    check((Prefix { keys: 33 }, Chunked { chunk }), lens, shift);
                }
                check(Prefix { keys: 21 }, lens, shift);
            }
        }
    }
}
