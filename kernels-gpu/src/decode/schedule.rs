//! Work items. Every block derives its work items from the lengths on the device. The schedule needs no
//! earlier kernel, and no state that survives a launch.
use super::batch::Batch;
use crate::lengths::{self, Unchecked};
use crate::rows::Rows;
use crate::variant::MaskFn;
use crate::variant::mask::keys_of;
use attention_tile::PackedRows;
use core::ops::{ControlFlow, Range};
use cuda_std::math::{opaque, rcp};
use spec::{DecodeOrder, DecodeParams, Kernel, LEAST_KEYS, MaskKind, SEARCH_WORDS, Tensor, Window};
use tile::exchange::SharedWords;
use tile::{Block, Smem, Steps, Warp};

/// A work item: one split of a sequence's keys, for one block of a key head's rows.
#[derive(Clone, Copy)]
pub struct Item {
    /// Index of the sequence.
    pub sequence: u32,
    /// Number of keys of the sequence.
    pub keys: u32,
    /// Index of the key head.
    pub kv_head: u32,
    /// Index of the block among the blocks of the key head's rows.
    pub row_block: u32,
    /// Index of the split in the sequence.
    pub split: u32,
    /// Number of splits of the sequence.
    pub splits: u32,
    /// Index of the sequence's first split in the workspace.
    pub slot: u32,
    /// Number of work items of all sequences, key heads and blocks of rows.
    pub items: u32,
    /// Whether this block must process the item. If the workspace lacks room for a sequence's splits, the
    /// sequence's first split takes all keys, and the other splits have no work.
    pub counts: bool,
}

/// Whether the window in the parameters alone determines the keys that queries see.
const fn is_window(mask: MaskKind) -> bool {
    matches!(mask, MaskKind::Causal | MaskKind::Local)
}

/// The keys that query `query` of a sequence of `keys` keys sees through the window.
#[inline(always)]
pub fn in_window<Mask: MaskFn>(p: &DecodeParams, query: u32, keys: u32) -> Range<i32> {
    in_window_of::<Mask>(p, query, keys, p.q.rows)
}

/// [`in_window`] of a sequence of `queries` queries.
#[inline(always)]
fn in_window_of<Mask: MaskFn>(p: &DecodeParams, query: u32, keys: u32, queries: u32) -> Range<i32> {
    Mask::keys_at(&p.window, query as i32 + keys as i32 - queries as i32 + p.window.shift, keys)
}

/// An interval that contains all keys that query `query` of a head sees under `mask`.
#[inline(always)]
pub fn seen_by<Mask: MaskFn>(p: &DecodeParams, item: &Item, mask: Mask::Keys, query: u32) -> Range<i32> {
    match is_window(Mask::KIND) {
        true => in_window::<Mask>(p, query, item.keys),
        false => keys_of(mask, &item.rows(p, 0), query),
    }
}

/// The first tile of 16 keys that a sequence of at most `queries` queries needs. With a window, this is the
/// first tile with a visible key. Other masks may depend on the head, which the schedule does not know, so
/// their kernels begin with key 0.
#[inline(always)]
pub fn first_tile<Mask: MaskFn>(p: &DecodeParams, keys: u32, queries: u32) -> u32 {
    if Mask::LEFT && is_window(Mask::KIND) {
        in_window_of::<Mask>(p, 0, keys, queries).start.max(0) as u32 / 16
    } else {
        0
    }
}

/// The numbers of one sequence. Each lane holds a different sequence.
#[derive(Clone, Copy)]
struct Sequence {
    keys: u32,
    /// Number of keys from the first tile on.
    seen: u32,
}

/// The rule that divides sequences into splits. All lanes have the same rule.
#[derive(Clone, Copy)]
struct Cut<'p> {
    p: &'p DecodeParams,
    /// Number of splits per key.
    per_key: f32,
}

impl Sequence {
    /// The numbers of sequence `i`. A sequence that does not exist has 0 keys.
    #[inline(always)]
    fn of<Mask: MaskFn>(p: &impl Batch, i: u32) -> Self {
        Self::new::<Mask>(p, p.keys(i))
    }

    #[inline(always)]
    fn new<Mask: MaskFn>(p: &impl Batch, length: Unchecked) -> Self {
        let (decode, most) = (p.decode(), p.most());
        let keys = length.forget().clamped(decode.order.max_keys);
        Sequence { keys, seen: keys - (first_tile::<Mask>(decode, keys, most) * 16).min(keys) }
    }

    /// Number of the sequence's tiles. The code counts tiles instead of keys: the number of tiles of all
    /// sequences fits 32 bits, but the number of keys may not.
    #[inline(always)]
    fn tiles(self) -> u32 {
        self.seen.div_ceil(16)
    }
}

impl<'p> Cut<'p> {
    /// The rule for sequences that have `tiles` tiles in all.
    #[inline(always)]
    fn of(p: &'p DecodeParams, tiles: u32) -> Self {
        Cut { p, per_key: p.order.share * rcp(tiles as f32 * 16.0) }
    }

    /// Number of splits of a sequence, by the rule of [`spec::DecodeOrder`].
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

    /// A sequence's weight in the search: splits in the lower half, slots in the upper half. The host checks
    /// that the sum over all sequences stays below 2^16 in each half.
    #[inline(always)]
    fn weight(self, sequence: Sequence) -> u32 {
        let splits = self.splits(sequence);
        splits | if splits > 1 { splits << 16 } else { 0 }
    }

    /// Work item `index`, if it belongs to one of the 32 sequences from `of * 32` on. Each lane holds one of
    /// these sequences. `before` is the sum of the weights of all earlier sequences.
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

/// The work item if there are at most 32 sequences. Each lane holds one length. Every warp finds the item
/// alone, without a barrier.
#[inline(always)]
fn item_of_few<Mask: MaskFn>(batch: &impl Batch, few: Unchecked, index: u32, warp: Warp) -> Option<Item> {
    let p = batch.decode();
    if p.order.lengths.count() > 1 {
        let sequence = Sequence::new::<Mask>(batch, few);
        return Cut::of(p, warp.sum(sequence.tiles())).pick(0, sequence, 0, index, warp);
    }
    // A single sequence needs no search.
    let one = Sequence::new::<Mask>(batch, few.of_lane(warp, 0));
    let splits = Cut::of(p, one.tiles()).splits(one);
    (index < splits).then_some(Item { keys: one.keys, split: index, splits, items: splits, ..Item::FIRST })
}

/// The first 32 lengths, one per lane, for [`Item::of`]. If there are more sequences, no code uses these
/// lengths. Then the loads touch every 32nd length instead, so that the L1 cache has the lengths of up to
/// 1024 sequences before a warp searches them 32 at a time.
#[inline(always)]
pub fn first_lengths(p: &impl Batch, warp: Warp) -> Unchecked {
    let step = if p.decode().order.lengths.count() > 32 { 32 } else { 1 };
    p.keys(warp.lane() * step)
}

/// The work item if there are many sequences and none has splits: item `index` is the sequence number `index`
/// of the sequences with keys. Every warp finds the item alone, without a barrier.
#[inline(always)]
fn item_of_whole(p: &impl Batch, index: u32, warp: Warp) -> Option<Item> {
    let order = &p.decode().order;
    let mut before = 0;
    // `opaque` keeps LLVM from computing the number of groups before the work items, where it would take a
    // register.
    for of in (Steps { at: 0, step: 1, end: opaque(order.lengths.count()).div_ceil(32) }) {
        let keys = p.keys(of * 32 + warp.lane()).clamped(order.max_keys);
        let upto = before + warp.count(keys > 0);
        if index < upto {
            let lane = warp.count(before + warp.prefix_sum(u32::from(keys > 0)) <= index);
            let (sequence, keys) = (of * 32 + lane, warp.shuffle(keys, lane));
            return Some(Item { sequence, keys, items: order.lengths.count(), ..Item::FIRST });
        }
        before = upto;
    }
    None
}

/// Whether work item `index` may exist. If the host states splits or chunks, the answer is always yes.
/// Otherwise each positive length has one item, and splits add at most the device's shares. Each warp counts
/// the lengths alone, with the loads of 128 lengths in flight, so a block without an item ends without a
/// barrier. If a graph was captured for many sequences and runs on few, most of its blocks have no item.
/// (H200, 8 sequences in a graph for 256, with [`super::merge::store_empty`]: 39.9 us with one load in
/// flight, 41.7 us without this function; 35.0 us if the graph was planned for 8.)
#[inline(always)]
fn may_be(order: &DecodeOrder, index: u32, warp: Warp) -> bool {
    let shares = order.share as u32 + 1;
    if order.lengths.base() == 0 || order.splits != 0 || order.chunk.get() > 1 || index < shares {
        return true;
    }
    let mut alive = 0;
    for of in (Steps { at: 0, step: 4, end: order.lengths.count().div_ceil(32) }) {
        // Without this line, the address of the first length takes registers in the main loop.
        let warp = warp.forget_lane();
        let is_some = |i| lengths::is_some(&order.lengths, (of + i) * 32 + warp.lane()) as u32;
        let [a, b, c, d] = [0, 1, 2, 3].map(is_some);
        alive += a + b + c + d;
    }
    index - shares < warp.sum(alive)
}

/// The work item if there are many sequences. Each warp of the block adds up the weights of 32 sequences at a
/// time, and the warps exchange their sums.
#[inline(always)]
fn item_of_many<Mask: MaskFn, K: Kernel>(
    p: &impl Batch,
    index: u32,
    block: &mut Block<K>,
    shared: SharedWords<'_, SEARCH_WORDS>,
) -> Option<Item> {
    let (warp, number, warps) = (block.warp(), block.warp().index(), block.warps());
    let groups = p.decode().order.lengths.count().div_ceil(32);
    let mine = Steps { at: number, step: warps, end: groups };
    let mut tiles = 0;
    for of in mine {
        tiles += Sequence::of::<Mask>(p, of * 32 + warp.lane()).tiles();
    }
    let sums = shared.write([(number, warp.sum(tiles))].into_iter(), block);
    let (sums, weights) = sums.split::<32, { SEARCH_WORDS - 32 }>();
    let all = warp.sum(if warp.lane() < warps { sums.get(warp.lane()) } else { 0 });
    let cut = Cut::of(p.decode(), all);
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

/// The numbers of a block's work items, which differ by the grid size.
#[inline(always)]
pub fn items<K: Kernel>(block: &Block<K>) -> Steps {
    Steps { at: block.index(), step: block.count(), end: u32::MAX >> 1 }
}

impl Item {
    /// The item of the first sequence's first key head, with 0 keys.
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

    /// Work item `index`, if it exists. Consecutive indices first pass through the blocks of rows of one key
    /// head, which find each other's keys in the L2 cache, and then through the key heads of one split. `few`
    /// is the result of [`first_lengths`].
    #[inline(always)]
    pub fn of<Mask: MaskFn, K: Kernel>(
        batch: &impl Batch,
        few: Unchecked,
        index: u32,
        block: &mut Block<K>,
        smem: &mut Smem<K>,
    ) -> Option<Self> {
        let p = batch.decode();
        let spread = p.order.spread;
        let index = if index < 2 * spread { index % 2 * spread + index / 2 } else { index };
        let (index, row_block) = p.order.row_blocks.div_rem(index);
        let (index, kv_head) = p.order.kv_heads.div_rem(index);
        let item = if p.order.lengths.count() <= 32 {
            item_of_few::<Mask>(batch, few, index, block.warp())
        } else if p.order.splits == 1 {
            item_of_whole(batch, index, block.warp())
        } else if !may_be(&p.order, index, block.warp()) {
            None
        } else {
            smem.lend(block, |shared, block| item_of_many::<Mask, K>(batch, index, block, shared))
        }?;
        // If lengths exceed the host's bound, splits may need more memory than the workspace has.
        let fits = item.slot + item.splits <= p.partials.slices.get() || item.splits == 1;
        let splits = if fits { item.splits } else { 1 };
        let items = item.items * p.order.kv_heads.get() * p.order.row_blocks.get();
        Some(Item { kv_head, row_block, splits, items, counts: fits || item.split == 0, ..item })
    }

    /// The item in registers that ptxas may make uniform. Kernels with large accumulators have no others.
    #[inline(always)]
    pub fn uniform(self, warp: Warp) -> Self {
        let [sequence, keys, kv_head] = [self.sequence, self.keys, self.kv_head].map(|x| warp.uniform(x));
        let [split, splits, slot] = [self.split, self.splits, self.slot].map(|x| warp.uniform(x));
        Item { sequence, keys, kv_head, row_block: warp.uniform(self.row_block), split, splits, slot, ..self }
    }

    /// The item, whose numbers are hidden from the compiler. LLVM then computes addresses that depend on the
    /// item after this call, where other loops no longer need the registers.
    #[inline(always)]
    pub fn forget(self) -> Self {
        Item { sequence: opaque(self.sequence), kv_head: opaque(self.kv_head), ..self }
    }

    /// Whether this block has another item behind this one, which is number `index`.
    #[inline(always)]
    pub fn next<K: Kernel>(&self, index: u32, block: &Block<K>) -> ControlFlow<()> {
        if index + block.count() < self.items { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// The item for block `of` of a sequence without keys. Blocks of rows are counted over all key heads.
    #[inline(always)]
    pub fn whole(p: &DecodeParams, sequence: u32, of: u32) -> Self {
        let (kv_head, row_block) = p.order.row_blocks.div_rem(of);
        Item { sequence, kv_head, row_block, ..Item::FIRST }
    }

    /// The block's first row, counted from the key head's first row.
    #[inline(always)]
    pub fn first_row(&self, p: &DecodeParams) -> u32 {
        self.row_block * p.order.rows
    }

    /// The item's rows of `tensor`, which must be Q or O.
    #[inline(always)]
    pub fn rows_of<'p>(&self, p: &'p DecodeParams, tensor: &Tensor) -> PackedRows<'p> {
        PackedRows::new(tensor, &p.group, self.sequence, self.kv_head).part(self.first_row(p), p.order.rows)
    }

    /// The sequence's queries, for query head `head` of the key head, as masks and scores need them.
    #[inline(always)]
    pub fn rows(&self, p: &DecodeParams, head: u32) -> Rows {
        let aligned = self.keys as i32 - p.q.rows as i32;
        Rows {
            first: 0,
            tile: p.q.rows,
            q_len: p.q.rows,
            k_len: self.keys,
            window: Window { shift: aligned + p.window.shift, ..p.window },
            of: [self.sequence, self.kv_head * p.group.get() + head],
        }
    }

    /// The index of the counter that counts the finished splits of the item's rows.
    #[inline(always)]
    pub fn counter(&self, p: &DecodeParams) -> u32 {
        let head = self.sequence * p.order.kv_heads.get() + self.kv_head;
        head * p.order.row_blocks.get() + self.row_block
    }
}
