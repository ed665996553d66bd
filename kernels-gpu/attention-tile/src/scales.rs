//! Walks through the scales of a KV cache's rows. Slot `i` of all pages has the scales of row `i % page` of
//! page `i / page`.
use crate::Strided;
use crate::table::{chunk_in, page};
use crate::walk::Source;
use core::marker::PhantomData;
use spec::{Cache, PerHead};
use tile::Warp;
use tile::copy::CpAsync;
use tile::group::ThreadGroup;
use tile::shared::{CopiedScales, StageScales};

/// A cache whose rows have one chunk each, so that the index of a row's chunk is the row's slot.
#[inline(always)]
fn slots(cache: &Cache) -> Cache {
    Cache { page_chunks: cache.page.get(), row_chunks: 1, ..*cache }
}

/// The scales of one head of a sequence: of the first `rows` keys, and of their values.
#[derive(Clone, Copy)]
pub struct HeadScales<'p> {
    /// The cache.
    pub cache: &'p Cache,
    /// The scales of keys and of values.
    pub scales: &'p [PerHead; 2],
    /// Index of the sequence.
    pub sequence: u32,
    /// Index of the head.
    pub head: u32,
    /// Number of rows.
    pub rows: u32,
}

/// A thread's scale in each stage: the scales of keys (0) or of values (1), and the row in the stage.
#[derive(Clone, Copy)]
struct Mine {
    /// The address of the head's scale in slot 0.
    base: u64,
    slot_bytes: u32,
    row: u32,
}

impl Mine {
    /// The thread's scale, scale `i` of a stage.
    #[inline(always)]
    fn new<K: CopiedScales>(scales: &[PerHead; 2], head: u32, i: u32) -> Self {
        let [which, row] = K::place(i);
        let which = if which == 0 { scales[0] } else { scales[1] };
        let base = which.base().wrapping_add((head as u64).wrapping_mul(which.head_bytes()));
        Mine { base, slot_bytes: which.sequence_bytes() as u32, row }
    }

    #[inline(always)]
    fn at(&self, slot: u32) -> u64 {
        self.base.wrapping_add((slot as u64).wrapping_mul(self.slot_bytes as u64))
    }
}

/// A warp's walk through the scales of its share of a sequence, beside a [`crate::CacheWalk`]. `K` are the
/// scales of a tile; the walk does nothing if they do not exist.
pub struct ScaleWalk<K, S> {
    slots: Cache,
    share: Strided,
    source: Option<S>,
    mine: Mine,
    warp: Warp,
    kind: PhantomData<K>,
}

impl<K: StageScales, S: Source> ScaleWalk<K, S> {
    /// Creates a walk before the first tile of head `head`.
    #[inline(always)]
    pub fn new(cache: &Cache, scales: &[PerHead; 2], share: Strided, head: u32, warp: Warp) -> Self {
        const { assert!(K::COUNT == 0 || K::COUNT == 32, "each lane copies one scale") }
        let slots = slots(cache);
        ScaleWalk {
            source: if K::EXIST { Some(S::new(&slots, &share, warp)) } else { None },
            mine: Mine::new::<K>(scales, head, warp.lane()),
            kind: PhantomData,
            slots,
            share,
            warp,
        }
    }

    /// Starts the copies of the scales of tile `i`, which exists. Calls must name the tiles in ascending
    /// order. Scales of rows past the end become zero.
    #[inline(always)]
    pub fn copy(&mut self, slot: &K::Slot<CpAsync<Warp>>, i: u32) {
        let Some(source) = &mut self.source else { return };
        source.seek(&self.slots, &self.share, i, self.warp);
        let from = self.mine.at(source.chunk(&self.slots, 0, self.mine.row, self.warp));
        let present = self.share.row(i) + self.mine.row < self.share.rows;
        // SAFETY: a row before the end has a slot, because `chunk` has clamped its page; each slot of every
        // head has a scale, at a multiple of 4, as `PerHead` promises. A lane's number is below the number of
        // scales.
        unsafe { K::copy(slot, self.warp.lane(), from, present) }
    }
}

/// A block's walk down the scales of a sequence, in stages of `R` base tiles of rows, beside a
/// [`crate::PageWalk`]. `K` are the scales of a stage; the walk does nothing if they do not exist.
pub struct ScalesDown<'p, K, W> {
    of: Option<HeadScales<'p>>,
    mine: Mine,
    /// The block table's entry for this thread's row. The thread clamps the entry when it uses the entry,
    /// after the load has arrived.
    page: u32,
    kind: PhantomData<(K, W)>,
}

impl<'p, K: CopiedScales, W: ThreadGroup> ScalesDown<'p, K, W> {
    /// Starts the walk at stage `from`. `of` must be there if the scales exist.
    #[inline(always)]
    pub fn new(of: Option<HeadScales<'p>>, from: u32, group: &W) -> Self {
        const { assert!(K::COUNT <= W::THREADS, "each thread copies one scale or none") }
        let none = Mine { base: 0, slot_bytes: 0, row: 0 };
        let of = if K::EXIST { of } else { None };
        let mine = of.map_or(none, |of| Mine::new::<K>(of.scales, of.head, group.member()));
        let mut walk = ScalesDown { of, mine, page: 0, kind: PhantomData };
        walk.look(from);
        walk
    }

    /// Looks up the page of this thread's row in a stage, if the row exists.
    #[inline(always)]
    fn look(&mut self, stage: u32) {
        let row = stage.wrapping_mul(K::ROWS).wrapping_add(self.mine.row);
        self.page = match self.of {
            Some(of) if row < of.rows => page(of.cache, of.sequence, row),
            _ => 0,
        };
    }

    /// Starts the copies of the scales of stage `stage`, which is the walk's next. Scales of rows that do not
    /// exist become zero.
    #[inline(always)]
    pub fn copy(&mut self, slot: &K::Slot<CpAsync<W>>, stage: u32, group: &W) {
        let Some(of) = self.of else { return };
        if group.member() < K::COUNT {
            let row = stage * K::ROWS + self.mine.row;
            let from = self.mine.at(chunk_in(&slots(of.cache), self.page, row));
            // SAFETY: a row before the end has a slot, because `chunk_in` has clamped its page; each slot of
            // every head has a scale, at a multiple of 4, as `PerHead` promises. The thread's number is below
            // the number of scales.
            unsafe { K::copy(slot, group.member(), from, row < of.rows) }
        }
        self.look(stage.wrapping_sub(1));
    }
}
