//! One item: FlashDecoding (Dao et al. 2023), transposed: S^T = K Q^T, O^T = V^T P^T.
use super::merge::{leave, merge_splits, store, store_empty};
use super::schedule::{Item, first_tile, seen_by};
use super::softmax::Softmax;
use crate::entries::Run;
use crate::lengths::Unchecked;
use crate::partial::Partial;
use crate::softcap::softcap;
use crate::variant::MaskFn;
use attention_tile::{CacheWalk, PagedRows, PagedTiles, Source, Strided, load_per_head};
use core::ops::ControlFlow;
use spec::{DType, Decode, DecodeCombine, DecodeParams, Local, MaskKind, PageMarker, Rows, Tiles};
use tile::mma::{ColAcc, ColFrag, ColVec, LoadAs, PlaceB, Stored, TensorCore};
use tile::pipeline::PerWarp;
use tile::shared::SharedTile;
use tile::{Block, Smem, Steps, shared_layout};

shared_layout! {
    /// 16 keys and their values.
    KvTile / KvTileSlot<E, D> { k: SharedTile<E, 1, D>, v: SharedTile<E, 1, D> }
}

/// How a page's keys are found.
pub trait Find: PageMarker {
    /// The source of rows.
    type Source: Source;
}
impl Find for Tiles {
    type Source = PagedTiles;
}
impl Find for Rows {
    type Source = PagedRows;
}

impl<
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn<Params = ()>,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> Run for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    /// Item after item, as many blocks apart as there are.
    #[inline(always)]
    fn run(p: DecodeParams, mut block: Block<Self>, smem: Smem<Self>) {
        const {
            let takes = matches!(Mask::KIND, MaskKind::Causal | MaskKind::Local);
            assert!(takes, "decode kernels take the masks `Causal`, which also runs full masks, and `Local`")
        }
        let items = Steps { at: block.index(), step: block.count(), end: u32::MAX >> 1 };
        let few = Unchecked::load(&p, block.warp().lane());
        smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
            block.forget_thread();
            let Some(item) = Item::of::<Mask, _>(p, few, index, block, &mut smem) else {
                return ControlFlow::Break(());
            };
            if item.counts {
                attend::<Q, E, Mask, Page, G, D, WARPS, SLOTS>(p, &item, block, smem);
            }
            if index + block.count() < item.items {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        store_empty::<Q, _, D>(&p, &block);
    }
}

/// Does one item.
#[inline(always)]
fn attend<
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
>(
    p: &DecodeParams,
    item: &Item,
    block: &mut Block<Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>>,
    smem: Smem<Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>>,
) {
    let (mut warp, (_, team)) = (block.warp(), block.split_groups::<1, 1, WARPS>());
    let queries = item.rows_of(p, &p.q);
    let share = Strided {
        sequence: item.sequence,
        first: first_tile::<Mask>(p, item.keys) + item.split * WARPS as u32 + team.index(),
        stride: item.splits * WARPS as u32,
        rows: item.keys,
    };
    let (mut acc_o, mut softmax) = (ColAcc::<D, G>::zero(), Softmax::new(p.scale_log2));

    // Each warp takes its own tiles through its own ring: no barrier of the block.
    let (places, right): (PerWarp<KvTile<E, D>, SLOTS, WARPS>, PlaceB<E::As, D, G>) = smem.split();
    let ring = places.own(block);
    let mut walk = CacheWalk::<E, Page::Source, D>::new(&p.cache, share, item.kv_head, warp);
    // Before the first keys: behind so many bytes their few would wait in line.
    let (q, factor) = ColFrag::<E::As, D, G>::load::<Q, E>(&queries, warp);
    let mut kv = ring.stream(|slot| walk.copy([&slot.k, &slot.v]));
    let q = right.keep(q, block);
    let [k_factor, v_factor] =
        [0, 1].map(|i| E::FACTOR * load_per_head(&p.scales[i], item.sequence, item.kv_head));
    let k_factor = factor.map(|x| x * k_factor);
    let seen = |row| seen_by::<Mask>(p, queries.unpack(row)[0], item.keys);
    let end = ColVec::<i32, G>::from_fn(warp, |row| seen(row).end);
    let start = ColVec::<i32, G>::from_fn(warp, |row| seen(row).start);
    for key in share.tiles() {
        let step = |tile: &KvTile<E, D>, warp: &mut _| {
            let mut s = ColAcc::<1, G>::product(&tile.k, &q, *warp); // S^T = K Q^T
            if E::DTYPE == DType::E4m3 {
                s.scale_columns(&k_factor);
            }
            if Mask::LEFT {
                softcap(&mut s, p.softcap, p.scale_log2);
                s.keep_from(&start, key, *warp);
            }
            s.keep_before(&end, key, *warp);
            softmax.observe(&s, &mut acc_o, *warp);
            let probs = softmax.exp::<E::As, 1>(&s, *warp); // P = exp2(S - max)
            acc_o.add_transposed(&tile.v, &probs, *warp); // O^T += V^T P^T
        };
        kv.turn(&mut warp, step, |slot| walk.copy([&slot.k, &slot.v]));
    }

    if E::DTYPE == DType::E4m3 {
        acc_o.map(|x| x * v_factor);
    }

    // Warps merge through shared memory, splits through global memory.
    let mine = (&acc_o, softmax.state());
    let left = kv.reclaim(block).exchange_columns::<E, _, D, G, WARPS>(mine, queries.count(), team, block);
    block.deal_quads::<D>(queries.count(), |row, quad| {
        let warps = left.quads(row, quad, |o, [max, sum]| Partial { max, sum, o });
        let all = Partial::NONE.merge(warps);
        if item.splits == 1 {
            store::<Q>(p, item, row, quad, all)
        } else {
            leave::<D>(p, item, row, quad, all)
        }
    });
    if item.splits > 1 && p.counters.count != 0 && block.is_last_of(item.splits, &p.counters, item.counter(p))
    {
        merge_splits::<Q, _, D>(p, item, block)
    }
}

impl<E: TensorCore, const D: usize> Run for DecodeCombine<E, D> {
    /// The block of a sequence's first split merges them. Where no window is, [`Local`] sees every key too.
    #[inline(always)]
    fn run(p: DecodeParams, mut block: Block<Self>, smem: Smem<Self>) {
        let items = Steps { at: block.index(), step: block.count(), end: u32::MAX >> 1 };
        let few = Unchecked::load(&p, block.warp().lane());
        smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
            let Some(item) = Item::of::<Local, _>(p, few, index, block, &mut smem) else {
                return ControlFlow::Break(());
            };
            if item.counts && item.split == 0 && item.splits > 1 {
                merge_splits::<E, _, D>(p, &item, block)
            }
            if index + block.count() < item.items {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
    }
}
