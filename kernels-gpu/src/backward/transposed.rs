//! A mask with the roles of queries and keys exchanged: the queries that see a key.
use crate::mask::MaskMod;
use crate::rows::{Rows, Sequence};
use core::ops::Range;
use spec::{MaskMarker, Window};

/// Mask `M` of the transposed scores, whose rows are keys and whose columns are queries.
///
/// From one query to the next, neither bound of a query's keys decreases. The queries that see a key are
/// therefore an interval, too, and from one key to the next neither of its bounds decreases. Bisection finds
/// them, so a mask states only its keys.
#[derive(Clone, Copy)]
pub struct Transposed<M> {
    mask: M,
    /// Number of queries, and the position of query 0 among the keys.
    queries: i32,
    shift: i32,
}

impl<M: MaskMarker> MaskMarker for Transposed<M> {
    const READS_WINDOW: bool = M::READS_WINDOW;
    type Params = M::Params;
}

impl<M: MaskMod> Transposed<M> {
    /// Mask `mask` of the sequence `of`, turned around.
    #[inline(always)]
    pub fn new(mask: M, of: &Sequence) -> Self {
        Transposed { mask, queries: of.queries, shift: of.shift }
    }

    /// The first query for which `is_behind(position)` is true, or the number of queries. Once it is true, it
    /// stays true. All lanes take equally many steps.
    #[inline(always)]
    fn first(&self, is_behind: impl Fn(i32) -> bool) -> i32 {
        let (mut before, mut step) = (0, (1u32 << 31) >> (self.queries as u32).leading_zeros());
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

impl<M: MaskMod> MaskMod for Transposed<M> {
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
        let end = if M::LEFT { self.first(|p| self.mask.keys(p).start > key) } else { i32::MAX };
        self.first(|p| self.mask.keys(p).end > key)..end
    }

    #[inline(always)]
    fn sees(&self, p: i32, query: i32) -> bool {
        self.mask.sees(query + self.shift, p + self.shift)
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
