//! Merges the partial results that several warps, several splits, or other kernels have for the same rows.
use super::batch::Batch;
use super::schedule::Item;
use crate::partial::Partial;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::opaque;
use spec::{DecodeParams, Kernel, MergeState, Tensor};
use tile::global::{GlobalVec, RowSlices, load_value};
use tile::mma::TensorCore;
use tile::{Block, Dealt, Ended, Steps};

/// Number of splits that one turn of the merge adds. The order of a turn's sums does not depend on the number
/// of loads in flight.
const TURN: usize = 16;

/// Number of states whose loads are in flight at the same time.
pub const STATES: usize = 4;

/// Merges the states over other keys into four columns of a row's result.
#[inline(always)]
fn with_states<E: TensorCore>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quad: u32,
    keys: Partial<4>,
    by: &Dealt,
) -> Partial<4> {
    // The main loop and the merge of splits need the registers. LLVM would compute what depends on parameters
    // ahead of the main loop, and what depends on the item ahead of the merge.
    let count = opaque(p.states.count);
    if count == 0 {
        return keys;
    }
    let item = item.forget();
    let [query, head] = item.rows_of(p, &p.o).unpack(row);
    let of = [item.sequence, query, item.kv_head * p.group.get() + head];
    let load = |i: u32| {
        if i >= count {
            return (f32::NEG_INFINITY, [0; 2]);
        }
        let MergeState { o, lse } = p.states.state(i);
        let o = Tensor { row_bytes: opaque(o.row_bytes), rows: p.o.rows, chunks: p.o.chunks, ..o };
        (load_value(&lse, of, by), item.rows_of(p, &o).load_quad(row, quad, by))
    };
    let mut all = keys;
    for from in (Steps { at: 0, step: STATES as u32, end: count }) {
        let loaded: [_; STATES] = core::array::from_fn(|i| load(opaque(from + i as u32)));
        all = all.merge(loaded.map(|(lse, words)| {
            let [[a, b], [c, d]] = words.map(E::unpack);
            Partial::normal([a, b, c, d], lse * LOG2_E)
        }));
    }
    all
}

/// Adds the states over other keys and the sink to four columns of a row's result, and stores the result.
#[inline(always)]
pub fn store<E: TensorCore>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quad: u32,
    keys: Partial<4>,
    by: &Dealt,
) {
    let out = item.rows_of(p, &p.o);
    let mut all = with_states::<E>(p, item, row, quad, keys, by);
    if p.sinks.base != 0 {
        let [_, head] = out.unpack(row);
        let logit = GlobalVec::new(&p.sinks, 0, item.kv_head * p.group.get() + head, 1).load_row(0, 0.0, by);
        all = all.merge([Partial::sink(logit * LOG2_E)]);
    }
    let ([a, b, c, d], lse) = all.normalised();
    out.store_quad(row, quad, [E::pack(a, b), E::pack(c, d)], by);
    if quad == 0 {
        out.store_value(&p.lse, [item.sequence, item.kv_head], row, lse * LN_2, by);
    }
}

/// Stores four columns of a row's partial result in the workspace.
#[inline(always)]
pub fn leave<const D: usize>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quad: u32,
    keys: Partial<4>,
    by: &Dealt,
) {
    let (o, lse) = keys.normalised();
    let left = left::<D>(p, item, row, by);
    left.store_quad(item.split, quad, o);
    if quad == 0 {
        left.store_value(item.split, lse);
    }
}

/// Stores an item's results, or leaves them in the workspace if the item is one of several splits. The last
/// block of these splits merges them, if the launch has counters. `all(row, quad)` are four columns of a row.
#[inline(always)]
pub fn finish<E: TensorCore, K: Kernel, const D: usize>(
    p: &DecodeParams,
    item: &Item,
    all: impl Fn(u32, u32) -> Partial<4>,
    block: &mut Block<K>,
) {
    block.deal_quads::<D>(item.rows_of(p, &p.q).count(), |row, quad, by| {
        if item.splits == 1 {
            store::<E>(p, item, row, quad, all(row, quad), &by)
        } else {
            leave::<D>(p, item, row, quad, all(row, quad), &by)
        }
    });
    merge_as_last::<E, _, D>(p, item, block)
}

/// Merges the item's splits in the last block of these splits, if the launch has counters.
#[inline(always)]
pub fn merge_as_last<E: TensorCore, K: Kernel, const D: usize>(
    p: &DecodeParams,
    item: &Item,
    block: &mut Block<K>,
) {
    if item.splits > 1 && p.counters.count != 0 && block.is_last_of(item.splits, &p.counters, item.counter(p))
    {
        merge_splits::<E, _, D, 16>(p, item, [0, 1], block.ended(), block)
    }
}

/// The partial results of all splits of a row.
#[inline(always)]
pub fn left<const D: usize>(p: &DecodeParams, item: &Item, row: u32, by: &Dealt) -> RowSlices<D> {
    RowSlices::new(&p.partials, item.slot, item.splits, item.kv_head, item.first_row(p) + row, by)
}

/// Merges the splits of an item's rows in the order of the splits, and stores the result. Several blocks
/// share the rows: this block is the first number of `share`, the number of blocks is the second. Each warp
/// merges one row at a time, with the loads of `LOADS` splits in flight, each in 4 registers. The splits have
/// `ended`: the kernel before left them, or this block is the last of their blocks.
#[inline(always)]
pub fn merge_splits<E: TensorCore, K: Kernel, const D: usize, const LOADS: usize>(
    p: &DecodeParams,
    item: &Item,
    share: [u32; 2],
    ended: Ended,
    block: &Block<K>,
) {
    let warp = block.warp();
    block.deal_quads_among::<D>(share, item.rows_of(p, &p.o).count(), |row, quad, by| {
        let mut left = left::<D>(p, item, row, &by);
        let mut all = Partial::NONE;
        while !left.is_empty() {
            // Each lane loads the LSE of one split. A lane past the last split gets weight 0.
            let lse = left.value(warp.lane(), f32::NEG_INFINITY, ended).to_bits();
            let load = |from: usize| core::array::from_fn(|i| left.quad((from + i) as u32, quad, ended));
            // The loads precede the shuffles. Behind a shuffle, ptxas loads one split after the other.
            let mut o: [_; LOADS] = load(0);
            let lse: [_; TURN] = core::array::from_fn(|i| f32::from_bits(warp.shuffle(lse, i as u32)));
            all = all.rescaled(lse.iter().fold(all.max, |max, lse| max.max(*lse)));
            for from in (0..TURN).step_by(LOADS) {
                all = all.plus(core::array::from_fn::<_, LOADS, _>(|i| Partial::normal(o[i], lse[from + i])));
                if from + LOADS < TURN {
                    o = load(from + LOADS);
                }
            }
            left = left.skip(TURN as u32);
        }
        store::<E>(p, item, row, quad, all, &by);
    })
}

/// Stores the results of sequences without keys, which have no work items. One block stores one sequence. The
/// last blocks of the grid store these results: if many sequences have no keys, the last blocks have no work
/// item.
#[inline(always)]
pub fn store_empty<E: TensorCore, K: Kernel, const D: usize>(batch: &impl Batch, block: &Block<K>) {
    let p = batch.decode();
    let from_the_end = block.count() - 1 - block.index();
    for sequence in (Steps { at: from_the_end, step: block.count(), end: p.order.lengths.count() }) {
        if batch.keys(sequence).clamped(p.order.max_keys) == 0 && batch.takes(sequence) {
            let own = batch.own(sequence);
            let p = &*own;
            let each = p.order.kv_heads.get() * p.order.row_blocks.get();
            for of in (Steps { at: 0, step: 1, end: each }) {
                let item = Item::whole(p, sequence, of);
                let rows = item.rows_of(p, &p.o).count();
                block.deal_quads::<D>(rows, |row, quad, by| {
                    store::<E>(p, &item, row, quad, Partial::NONE, &by)
                });
            }
        }
    }
}
