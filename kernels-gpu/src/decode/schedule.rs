//! Which block does what. Every block derives it from the lengths on the device: no kernel before, no state
//! between launches.
use crate::lengths::Unchecked;
use crate::variant::MaskFn;
use attention_tile::PackedRows;
use core::ops::Range;
use cuda_std::math::rcp;
use spec::{DecodeParams, Kernel, LEAST_KEYS, TALLY, Tensor};
use tile::exchange::Tally;
use tile::{Block, Smem, Steps, Warp};

/// One part of one sequence's keys, for one block of the rows of one key head.
#[derive(Clone, Copy)]
pub struct Item {
    /// The sequence.
    pub sequence: u32,
    /// Its keys.
    pub keys: u32,
    /// The key head.
    pub kv_head: u32,
    /// Which block of its rows.
    pub row_block: u32,
    /// Which split of the sequence, of how many.
    pub split: u32,
    /// Splits of the sequence.
    pub splits: u32,
    /// Where the first split leaves its result.
    pub slot: u32,
    /// Items of all sequences, times key heads and their blocks of rows.
    pub items: u32,
    /// Whether there is something to do: of a sequence whose splits have no slots, the first does all.
    pub counts: bool,
}

/// Keys that query `query` of a sequence of `keys` keys sees.
#[inline(always)]
pub fn seen_by<Mask: MaskFn>(p: &DecodeParams, query: u32, keys: u32) -> Range<i32> {
    Mask::keys_at(&p.window, query as i32 + keys as i32 - p.q.rows as i32 + p.window.shift, keys)
}

/// The first tile of 16 keys that some query sees.
#[inline(always)]
pub fn first_tile<Mask: MaskFn>(p: &DecodeParams, keys: u32) -> u32 {
    if Mask::LEFT { seen_by::<Mask>(p, 0, keys).start.max(0) as u32 / 16 } else { 0 }
}

/// What is known of one sequence, a lane's own.
#[derive(Clone, Copy)]
struct Sequence {
    keys: u32,
    /// Keys in tiles that some query sees.
    seen: u32,
}

/// How sequences are cut. Every lane has the same.
#[derive(Clone, Copy)]
struct Cut<'p> {
    p: &'p DecodeParams,
    /// Splits that a key is worth.
    per_key: f32,
}

impl Sequence {
    /// Sequence `i`; without a key where there is none.
    #[inline(always)]
    fn of<Mask: MaskFn>(p: &DecodeParams, i: u32) -> Self {
        Self::new::<Mask>(p, Unchecked::load(p, i))
    }

    #[inline(always)]
    fn new<Mask: MaskFn>(p: &DecodeParams, length: Unchecked) -> Self {
        let keys = length.forget().clamped(p.order.max_keys);
        Sequence { keys, seen: keys - (first_tile::<Mask>(p, keys) * 16).min(keys) }
    }

    /// In tiles, so that a sum of all sequences fits 32 bits.
    #[inline(always)]
    fn tiles(self) -> u32 {
        self.seen.div_ceil(16)
    }
}

impl<'p> Cut<'p> {
    /// Where all sequences have so many tiles.
    #[inline(always)]
    fn of(p: &'p DecodeParams, tiles: u32) -> Self {
        Cut { p, per_key: p.order.share * rcp(tiles as f32 * 16.0) }
    }

    /// Splits of a sequence: [`spec::DecodeOrder`]'s rule.
    #[inline(always)]
    fn splits(self, sequence: Sequence) -> u32 {
        let order = &self.p.order;
        if sequence.keys == 0 {
            return 0;
        }
        if order.splits != 0 {
            return order.splits.min(sequence.tiles()).max(1);
        }
        if order.chunk.get() > 1 {
            return order.chunk.div_rem(sequence.seen + order.chunk.get() - 1).0.max(1);
        }
        let share = sequence.seen as f32 * self.per_key;
        if share >= order.threshold {
            ((share * (1.0 + 1.0 / 1024.0)) as u32).min(sequence.seen.div_ceil(LEAST_KEYS)).max(1)
        } else {
            1
        }
    }

    /// A sequence's weight in the search: splits in the lower half, slots in the upper. Sums stay below 2^16
    /// (the host has checked).
    #[inline(always)]
    fn weight(self, sequence: Sequence) -> u32 {
        let splits = self.splits(sequence);
        splits | if splits > 1 { splits << 16 } else { 0 }
    }

    /// Item `index`, if it is one of sequences `of * 32..`, a lane's each; `before` is the weight of those
    /// before.
    #[inline(always)]
    fn pick(self, of: u32, sequence: Sequence, before: u32, index: u32, warp: Warp) -> Option<Item> {
        let mine = self.weight(sequence);
        let upto = before + warp.prefix_sum(mine);
        let lane = warp.count(upto & 0xffff <= index);
        if lane == 32 {
            return None;
        }
        let [keys, splits, from] = [sequence.keys, mine & 0xffff, upto - mine].map(|x| warp.shuffle(x, lane));
        Some(Item {
            sequence: of * 32 + lane,
            keys,
            split: index - (from & 0xffff),
            splits,
            slot: from >> 16,
            items: warp.shuffle(upto, 31) & 0xffff,
            ..Item::FIRST
        })
    }
}

/// At most 32 sequences, a lane's length each: every warp finds the item for itself, without a barrier.
#[inline(always)]
fn item_of_few<Mask: MaskFn>(p: &DecodeParams, few: Unchecked, index: u32, warp: Warp) -> Option<Item> {
    if p.order.lengths.count > 1 {
        let sequence = Sequence::new::<Mask>(p, few);
        return Cut::of(p, warp.sum(sequence.tiles())).pick(0, sequence, 0, index, warp);
    }
    // Nothing to look for.
    let one = Sequence::new::<Mask>(p, few.of_lane(warp, 0));
    let splits = Cut::of(p, one.tiles()).splits(one);
    (index < splits).then_some(Item { keys: one.keys, split: index, splits, items: splits, ..Item::FIRST })
}

/// Whether there may be an item `index`, by how many sequences have keys alone: each has an item, and all of
/// them together the device's shares beside. Each warp counts for itself: blocks that find nothing, as most
/// of a graph do that was captured for many sequences and finds few, end without a barrier. (With what
/// [`super::merge::store_empty`] leaves to them: 8 of 256 take 39.9 us for 41.7, 35.0 planned; H200.)
#[inline(always)]
fn may_be(p: &DecodeParams, index: u32, warp: Warp) -> bool {
    let order = &p.order;
    let shares = if order.splits == 0 { order.share as u32 + 1 } else { 0 };
    if order.chunk.get() > 1 || index < shares {
        return true;
    }
    let mut alive = 0;
    for of in (Steps { at: 0, step: 1, end: order.lengths.count.div_ceil(32) }) {
        let length = Unchecked::load(p, of * 32 + warp.lane());
        alive += u32::from(length.clamped(order.max_keys) > 0);
    }
    index - shares < warp.sum(alive) * order.splits.max(1)
}

/// The warps of the block take 32 sequences at a time, each its own, and leave each other their sums.
#[inline(always)]
fn item_of_many<Mask: MaskFn, K: Kernel>(
    p: &DecodeParams,
    index: u32,
    block: &mut Block<K>,
    tally: Tally<'_, TALLY>,
) -> Option<Item> {
    let (warp, number, warps) = (block.warp(), block.warp().index(), block.warps());
    let groups = p.order.lengths.count.div_ceil(32);
    let mine = Steps { at: number, step: warps, end: groups };
    let mut tiles = 0;
    for of in mine {
        tiles += Sequence::of::<Mask>(p, of * 32 + warp.lane()).tiles();
    }
    let sums = tally.write([(number, warp.sum(tiles))].into_iter(), block);
    let (sums, weights) = sums.split::<32, { TALLY - 32 }>();
    let all = warp.sum(if warp.lane() < warps { sums.get(warp.lane()) } else { 0 });
    let cut = Cut::of(p, all);
    let mine = mine.map(|of| {
        let sequence = Sequence::of::<Mask>(p, of * 32 + warp.lane());
        (of, warp.sum(cut.weight(sequence)))
    });
    let weights = weights.write(mine, block);
    let (mut before, mut from) = (0, 0);
    while from < groups {
        let of = from + warp.lane();
        let all = if of < groups { weights.get(of) } else { 0 };
        let upto = before + warp.prefix_sum(all);
        let lane = warp.count(upto & 0xffff <= index);
        let items = if groups <= 32 { warp.shuffle(upto, 31) & 0xffff } else { u32::MAX >> 16 };
        if lane < 32 {
            (before, from) = (warp.shuffle(upto - all, lane), from + lane);
            let sequence = Sequence::of::<Mask>(p, from * 32 + warp.lane());
            let found = cut.pick(from, sequence, before, index, warp)?;
            return Some(Item { items, ..found });
        }
        (before, from) = (warp.shuffle(upto, 31), from + 32);
    }
    None
}

impl Item {
    /// Of the first sequence's first key head, without keys.
    const FIRST: Self = Item {
        sequence: 0,
        keys: 0,
        kv_head: 0,
        row_block: 0,
        split: 0,
        splits: 1,
        slot: 0,
        items: 0,
        counts: true,
    };

    /// What block `index` does, if there is anything. Neighbours have the same keys: of one head, for its
    /// blocks of rows, which then find them in the L2 cache; and of different heads. `few` are the first 32
    /// lengths, a lane's each.
    #[inline(always)]
    pub fn of<Mask: MaskFn, K: Kernel>(
        p: &DecodeParams,
        few: Unchecked,
        index: u32,
        block: &mut Block<K>,
        smem: &mut Smem<K>,
    ) -> Option<Self> {
        let spread = p.order.spread;
        let index = if index < 2 * spread { index % 2 * spread + index / 2 } else { index };
        let (index, row_block) = p.order.row_blocks.div_rem(index);
        let (index, kv_head) = p.order.kv_heads.div_rem(index);
        let item = if p.order.lengths.count <= 32 {
            item_of_few::<Mask>(p, few, index, block.warp())
        } else if !may_be(p, index, block.warp()) {
            None
        } else {
            smem.lend(block, |tally, block| item_of_many::<Mask, K>(p, index, block, tally))
        }?;
        // Lengths above what the host was told need more slots than there are.
        let fits = item.slot + item.splits <= p.partials.slices.get() || item.splits == 1;
        let splits = if fits { item.splits } else { 1 };
        let items = item.items * p.order.kv_heads.get() * p.order.row_blocks.get();
        Some(Item { kv_head, row_block, splits, items, counts: fits || item.split == 0, ..item })
    }

    /// Number `of` of the blocks of rows of a sequence that has no key, counted through its key heads.
    #[inline(always)]
    pub fn whole(p: &DecodeParams, sequence: u32, of: u32) -> Self {
        let (kv_head, row_block) = p.order.row_blocks.div_rem(of);
        Item { sequence, kv_head, row_block, ..Item::FIRST }
    }

    /// The first of its rows among those of its key head.
    #[inline(always)]
    pub fn first_row(&self, p: &DecodeParams) -> u32 {
        self.row_block * p.order.rows
    }

    /// Its rows of `tensor`, queries or what becomes of them.
    #[inline(always)]
    pub fn rows_of<'p>(&self, p: &'p DecodeParams, tensor: &Tensor) -> PackedRows<'p> {
        PackedRows::new(tensor, &p.group, self.sequence, self.kv_head).part(self.first_row(p), p.order.rows)
    }

    /// Which counter tells that all splits of its rows are there.
    #[inline(always)]
    pub fn counter(&self, p: &DecodeParams) -> u32 {
        let head = self.sequence * p.order.kv_heads.get() + self.kv_head;
        head * p.order.row_blocks.get() + self.row_block
    }
}
