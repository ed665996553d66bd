//! What several warps, or blocks, make of the same rows, each from its keys.
use super::schedule::Item;
use crate::lengths::length;
use crate::partial::Partial;
use core::f32::consts::{LN_2, LOG2_E};
use spec::{DecodeParams, Kernel};
use tile::{Block, GlobalVec, PackedRows, PartialRows, Steps, TensorCore};

/// Splits whose loads are under way at once.
const AT_ONCE: usize = 16;

/// Stores two columns of what a row's keys make.
#[inline(always)]
pub fn store<E: TensorCore>(p: &DecodeParams, item: &Item, row: u32, pair: u32, keys: Partial<2>) {
    let out = PackedRows::of(&p.o, &p.group, item.sequence, item.kv_head);
    let mut all = keys;
    if p.sinks.base != 0 {
        let [_, head] = out.unpack(row);
        let logit = GlobalVec::of(&p.sinks, 0, item.kv_head * p.group.get() + head, 1).load_row(0, 0.0);
        all = all.merge([Partial::sink(logit * LOG2_E)]);
    }
    let ([lo, hi], lse) = all.normalised();
    out.store_word(row, pair, E::pack(lo, hi));
    if pair == 0 {
        out.store_value(&p.lse, [item.sequence, item.kv_head], row, lse * LN_2);
    }
}

/// Leaves two columns of what a row's keys of this split make.
#[inline(always)]
pub fn leave<const D: usize>(p: &DecodeParams, item: &Item, row: u32, pair: u32, keys: Partial<2>) {
    let (o, lse) = keys.normalised();
    let slot = item.slot + item.split;
    PartialRows::<D>::of(&p.partials, slot, item.kv_head).store_columns(row, pair, o);
    if pair == 0 {
        GlobalVec::of_slice(&p.partials, slot, item.kv_head).store_row(row, lse);
    }
}

/// Merges the splits of a sequence and stores the result. The whole block takes part.
#[inline(always)]
pub fn merge_splits<E: TensorCore, K: Kernel, const D: usize>(
    p: &DecodeParams,
    item: &Item,
    block: &Block<K>,
) {
    block.deal_pairs::<D>(rows(p), |row, pair| {
        let (mut all, mut first) = (Partial::NONE, 0);
        while first < item.splits {
            let batch: [_; AT_ONCE] = core::array::from_fn(|i| {
                // Past the last: the first one again, with no weight.
                let exists = first + (i as u32) < item.splits;
                let slot = item.slot + if exists { first + i as u32 } else { 0 };
                let o = PartialRows::<D>::of(&p.partials, slot, item.kv_head).load_columns(row, pair);
                let lse =
                    GlobalVec::of_slice(&p.partials, slot, item.kv_head).load_row(row, f32::NEG_INFINITY);
                Partial::normal(o, if exists { lse } else { f32::NEG_INFINITY })
            });
            all = all.merge(batch);
            first += AT_ONCE as u32;
        }
        store::<E>(p, item, row, pair, all);
    })
}

/// Stores what sequences without a key make, each by one block: they are no items.
#[inline(always)]
pub fn store_empty<E: TensorCore, K: Kernel, const D: usize>(p: &DecodeParams, block: &Block<K>) {
    for sequence in (Steps { at: block.index(), step: block.count(), end: p.order.lengths.count }) {
        if length(&p.order.lengths, sequence, p.order.max_keys) == 0 {
            for kv_head in (Steps { at: 0, step: 1, end: p.order.kv_heads.get() }) {
                let item = Item::whole(sequence, kv_head);
                block.deal_pairs::<D>(rows(p), |row, pair| store::<E>(p, &item, row, pair, Partial::NONE));
            }
        }
    }
}

/// Rows of a key head.
#[inline(always)]
pub fn rows(p: &DecodeParams) -> u32 {
    p.q.rows * p.group.get()
}
