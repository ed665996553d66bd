//! Stores whole rows: a lane has several quads of a row, so that what the row has once is computed once. The
//! functions of [`super::merge`] have one quad, and stay as they are: LLVM compiles one quad of an array to
//! other code.
use super::merge::{STATES, left, merge_as_last};
use super::schedule::Item;
use crate::partial::Partial;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::math::opaque;
use spec::{DecodeParams, Kernel, MergeState, Tensor};
use tile::global::{GlobalVec, load_value};
use tile::mma::TensorCore;
use tile::{Block, Dealt, Steps};

/// Merges the states over other keys into the columns of a row's result that `quads` name.
#[inline(always)]
fn with_states<E: TensorCore, const P: usize, const N: usize>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quads: [u32; P],
    keys: Partial<N>,
    by: &Dealt,
) -> Partial<N> {
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
            return (f32::NEG_INFINITY, [[0; 2]; P]);
        }
        let MergeState { o, lse } = p.states.state(i);
        let o = Tensor { row_bytes: opaque(o.row_bytes), rows: p.o.rows, chunks: p.o.chunks, ..o };
        let rows = item.rows_of(p, &o);
        (load_value(&lse, of, by), quads.map(|quad| rows.load_quad(row, quad, by)))
    };
    let mut all = keys;
    for from in (Steps { at: 0, step: STATES as u32, end: count }) {
        let loaded: [_; STATES] = core::array::from_fn(|i| load(opaque(from + i as u32)));
        all = all.merge(loaded.map(|(lse, words)| {
            let columns = words.map(|words| {
                let [[a, b], [c, d]] = words.map(E::unpack);
                [a, b, c, d]
            });
            Partial::normal(side_by_side(columns), lse * LOG2_E)
        }));
    }
    all
}

/// The columns of `P` quads, one after the other.
#[inline(always)]
pub fn side_by_side<const P: usize, const N: usize>(quads: [[f32; 4]; P]) -> [f32; N] {
    const { assert!(N == 4 * P, "a quad has four columns") }
    core::array::from_fn(|i| quads[i / 4][i % 4])
}

/// Calls `f` with each quad and its columns.
#[inline(always)]
fn each_quad<const P: usize, const N: usize>(quads: [u32; P], o: [f32; N], f: impl Fn(u32, [f32; 4])) {
    const { assert!(N == 4 * P, "a quad has four columns") }
    for i in 0..P {
        f(quads[i], [o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]])
    }
}

/// Adds the states over other keys and the sink to columns of a row's result, and stores the result. The
/// columns are four for each quad, and the thread with the first quad also stores the LSE.
#[inline(always)]
fn store<E: TensorCore, const P: usize, const N: usize>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quads: [u32; P],
    keys: Partial<N>,
    by: &Dealt,
) {
    let out = item.rows_of(p, &p.o);
    let mut all = with_states::<E, P, N>(p, item, row, quads, keys, by);
    if p.sinks.base != 0 {
        let [_, head] = out.unpack(row);
        let logit = GlobalVec::new(&p.sinks, 0, item.kv_head * p.group.get() + head, 1).load_row(0, 0.0, by);
        all = all.merge([Partial::sink(logit * LOG2_E)]);
    }
    let (o, lse) = all.normalised();
    each_quad(quads, o, |quad, [a, b, c, d]| {
        out.store_quad(row, quad, [E::pack(a, b), E::pack(c, d)], by);
    });
    if quads[0] == 0 {
        out.store_value(&p.lse, [item.sequence, item.kv_head], row, lse * LN_2, by);
    }
}

/// Stores columns of a row's partial result in the workspace, as [`store`] stores columns of O.
#[inline(always)]
fn leave<const D: usize, const P: usize, const N: usize>(
    p: &DecodeParams,
    item: &Item,
    row: u32,
    quads: [u32; P],
    keys: Partial<N>,
    by: &Dealt,
) {
    let (o, lse) = keys.normalised();
    let left = left::<D>(p, item, row, by);
    each_quad(quads, o, |quad, columns| left.store_quad(item.split, quad, columns));
    if quads[0] == 0 {
        left.store_value(item.split, lse);
    }
}

/// [`super::merge::finish`] with a whole row per warp. `all(row, quads)` are the columns of `P` quads of a
/// row.
#[inline(always)]
pub fn finish_rows<E: TensorCore, K: Kernel, const D: usize, const P: usize, const N: usize>(
    p: &DecodeParams,
    item: &Item,
    all: impl Fn(u32, [u32; P]) -> Partial<N>,
    block: &mut Block<K>,
) {
    const { assert!(D == 8 * P, "the lanes of a warp have all quads of a row") }
    let rows = item.rows_of(p, &p.q).count();
    // The choice is outside of the loop, because its branches would delay the next row's loads.
    if item.splits == 1 {
        block.deal_rows(rows, |row, quads, by| store::<E, P, N>(p, item, row, quads, all(row, quads), &by))
    } else {
        block.deal_rows(rows, |row, quads, by| leave::<D, P, N>(p, item, row, quads, all(row, quads), &by))
    }
    merge_as_last::<E, _, D>(p, item, block)
}
