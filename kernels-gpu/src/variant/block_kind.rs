//! Finds how much of a key block the queries of a work tile see, by the mask's own functions. Host and device
//! make block masks with this code. The host evaluates the mask for one pair at a time, and a warp for 32
//! pairs at a time.
use crate::rows::Sequence;
use crate::variant::mask::MaskMod;
use core::ops::Range;
use tile::Warp;

/// How much of a key block the queries of a work tile see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// No query sees a key.
    Empty,
    /// Some query sees a key, and some query does not see a key of the block, or the keys end in the block.
    Partial,
    /// Every query sees every key.
    Full,
}

/// The threads that share the pairs of a block. All of them get the same result.
pub trait Lanes: Copy {
    /// Number of threads.
    const COUNT: i32;
    /// This thread's index.
    fn index(self) -> i32;
    /// Whether `p` is true for any thread.
    fn any(self, p: bool) -> bool;
}

/// One thread.
#[derive(Clone, Copy)]
pub struct Alone;
impl Lanes for Alone {
    const COUNT: i32 = 1;
    #[inline(always)]
    fn index(self) -> i32 {
        0
    }
    #[inline(always)]
    fn any(self, p: bool) -> bool {
        p
    }
}

impl Lanes for Warp {
    const COUNT: i32 = 32;
    #[inline(always)]
    fn index(self) -> i32 {
        self.lane() as i32
    }
    #[inline(always)]
    fn any(self, p: bool) -> bool {
        Warp::any(self, p)
    }
}

/// The keys that the query at position `p` sees, all of which exist.
#[inline(always)]
fn keys<M: MaskMod>(mask: &M, of: &Sequence, p: i32) -> Range<i32> {
    let Range { start, end } = mask.keys(p);
    (if M::LEFT { start.max(0) } else { 0 })..end.min(of.keys)
}

/// How much of block `n` of `tile_n` keys the queries `of.tile` see. As everywhere, bounds of `mask.keys`
/// never fall, and `mask.whole` has no holes.
#[inline(always)]
pub fn kind_of<M: MaskMod>(mask: &M, of: &Sequence, [n, tile_n]: [u32; 2], lanes: impl Lanes) -> BlockKind {
    let block = (n * tile_n) as i32..((n + 1) * tile_n) as i32;
    let [first, last] = of.tile.map(|query| query + of.shift);
    // The interval of every query of the tile begins between the begins of the first and the last query's
    // intervals, and it ends between their ends.
    let (upper, lower) = (keys(mask, of, first), keys(mask, of, last));
    if block.start >= lower.end || block.end <= upper.start {
        return BlockKind::Empty;
    }
    let is_inside = block.start >= lower.start && block.end <= upper.end;
    let whole = mask.whole();
    let has_holes = M::HOLES && !(whole.start <= block.start && block.end <= whole.end);
    match (is_inside, has_holes) {
        (true, false) => BlockKind::Full,
        (false, false) => by_intervals(mask, of, block, lanes),
        (_, true) => by_pairs(mask, of, block, lanes),
    }
}

/// [`kind_of`] for a block without holes that is not inside of all intervals.
#[inline(always)]
fn by_intervals<M: MaskMod, L: Lanes>(mask: &M, of: &Sequence, block: Range<i32>, lanes: L) -> BlockKind {
    let [first, last] = of.tile.map(|query| query + of.shift);
    let mut is_seen = false;
    let mut p = first + lanes.index();
    for _ in 0..(last - first) / L::COUNT + 1 {
        let keys = keys(mask, of, p.min(last));
        is_seen |= keys.start.max(block.start) < keys.end.min(block.end);
        p += L::COUNT;
    }
    if lanes.any(is_seen) { BlockKind::Partial } else { BlockKind::Empty }
}

/// [`kind_of`] for a block that may have holes. The function asks for the corners first, and then for each
/// pair until the result is certain.
#[inline(always)]
fn by_pairs<M: MaskMod, L: Lanes>(mask: &M, of: &Sequence, block: Range<i32>, lanes: L) -> BlockKind {
    let [first, last] = of.tile.map(|query| query + of.shift);
    let sees = |p: i32, k: i32| keys(mask, of, p).contains(&k) && mask.sees(p, k);
    let (k, end) = (block.start, block.end - 1);
    let [a, b, c, d] = [sees(first, k), sees(first, end), sees(last, k), sees(last, end)];
    let (mut is_seen, mut is_hidden) = (a | b | c | d, !(a & b & c & d));
    let mut p = first;
    while p <= last && !(is_seen && is_hidden) {
        let (mut seen, mut hidden) = (false, false);
        for step in 0..(block.end - block.start + L::COUNT - 1) / L::COUNT {
            let k = block.start + step * L::COUNT + lanes.index();
            let (is_there, sees) = (k < block.end, sees(p, k));
            seen |= is_there && sees;
            hidden |= is_there && !sees;
        }
        is_seen |= lanes.any(seen);
        is_hidden |= lanes.any(hidden);
        p += 1;
    }
    match (is_seen, is_hidden) {
        (false, _) => BlockKind::Empty,
        (true, true) => BlockKind::Partial,
        (true, false) => BlockKind::Full,
    }
}
