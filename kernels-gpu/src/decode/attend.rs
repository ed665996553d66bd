//! Computes one work item by FlashDecoding (Dao et al. 2023), with transposed products: S^T = K Q^T, O^T =
//! V^T P^T.
use super::batch::Batch;
use super::merge::{leave, merge_splits, store, store_empty};
use super::schedule::{Item, first_lengths, first_tile, seen_by};
use super::softmax::Softmax;
use crate::capped::Capped;
use crate::entries::{Run, RunAs, RunDependent};
use crate::partial::Partial;
use crate::rows::Sequence;
use crate::variant::mask::MaskMod;
use crate::variant::softcap::softcap;
use crate::variant::{MaskFn, Scores};
use attention_tile::{CacheWalk, PagedRows, PagedTiles, ScaleWalk, Source, Strided, head_of, load_per_head};
use core::ops::ControlFlow;
use spec::{
    DType, Decode, DecodeCombine, DecodeParams, Dependent, FewCombine, FewParams, FewQueries, HasVariant,
    Kernel, Local, MaskKind, MaskMarker, PageMarker, Rows, Sm80, Tiles, With, WithParams,
};
use tile::copy::CpAsync;
use tile::mma::{ColAcc, ColFrag, ColVec, LaneScales, LoadAs, PlaceB, Stored, TensorCore};
use tile::pipeline::PerWarp;
use tile::shared::{CopiedScales, Scaled, SharedTile};
use tile::{Block, Smem, Steps, Warp, shared_layout};

shared_layout! {
    /// A tile of 16 keys and a tile of their values.
    KvTile / KvTileSlot<E, D> { k: SharedTile<E, 1, D>, v: SharedTile<E, 1, D> }
}

/// Each warp's ring of stages. The scales of a stage's rows lie beside the stages, if rows have scales.
type Rings<E, const D: usize, const SLOTS: usize, const WARPS: usize> =
    PerWarp<KvTile<E, D>, SLOTS, WARPS, <E as Scaled>::Scales<1>>;

/// Finds keys in pages of this alignment.
pub trait Find: PageMarker {
    /// Finds a tile's rows in the cache.
    type Source: Source;
}
impl Find for Tiles {
    type Source = PagedTiles;
}
impl Find for Rows {
    type Source = PagedRows;
}

impl Capped for DecodeParams {
    #[inline(always)]
    fn scale_log2(&self) -> f32 {
        self.scale_log2
    }
    #[inline(always)]
    fn softcap(&self) -> f32 {
        self.softcap
    }
}

impl<
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn + MaskMarker<Params = ()>,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> Run for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    #[inline(always)]
    fn run(p: DecodeParams, block: Block<Self>, smem: Smem<Self>) {
        attend_all::<Self, Q, E, Mask, Page, G, D, WARPS, SLOTS>(&p, block, smem)
    }
}

impl<
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn<Params: 'static>,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> RunAs<With<Self>, Sm80> for Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>
{
    #[inline(always)]
    fn run_as(p: WithParams<DecodeParams, Mask::Params>, block: Block<With<Self>>, smem: Smem<With<Self>>) {
        attend_all::<With<Self>, Q, E, Mask, Page, G, D, WARPS, SLOTS>(&p, block, smem)
    }
}

impl<
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn + MaskMarker<Params = ()>,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
> Run for FewQueries<Decode<Q, E, Mask, Page, G, D, WARPS, SLOTS>>
{
    #[inline(always)]
    fn run(p: FewParams, block: Block<Self>, smem: Smem<Self>) {
        attend_all::<Self, Q, E, Mask, Page, G, D, WARPS, SLOTS>(&p, block, smem)
    }
}

/// Processes a block's work items, whose indices differ by the grid size.
#[inline(always)]
fn attend_all<
    C: Kernel<Params: Batch + HasVariant<Mask::Params> + 'static>,
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
>(
    p: &C::Params,
    mut block: Block<C>,
    smem: Smem<C>,
) {
    const { assert!(!Mask::LISTED, "`Decode` takes all keys: `BlockSparse` needs `Fwd`") }
    const { assert!(!Mask::SINK, "decode kernels take sinks as a parameter: `DecodeParams::sinks`") }
    let items = Steps { at: block.index(), step: block.count(), end: u32::MAX >> 1 };
    let few = first_lengths(p, block.warp());
    smem.rounds(&mut block, items, p, few, |params, few, index, block, mut smem| {
        block.forget_thread();
        let Some(item) = Item::of::<Mask, _>(params, few, index, block, &mut smem) else {
            return ControlFlow::Break(());
        };
        if item.counts {
            attend::<C, Q, E, Mask, Page, G, D, WARPS, SLOTS>(params, &item, block, smem);
        }
        if index + block.count() < item.items { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    store_empty::<Q, _, D>(p, &block);
}

/// Processes one work item.
#[inline(always)]
fn attend<
    C: Kernel<Params: Batch + HasVariant<Mask::Params> + 'static>,
    Q: LoadAs<E::As>,
    E: Stored,
    Mask: MaskFn,
    Page: Find,
    const G: usize,
    const D: usize,
    const WARPS: usize,
    const SLOTS: usize,
>(
    params: &C::Params,
    item: &Item,
    block: &mut Block<C>,
    smem: Smem<C>,
) {
    let own = params.own(item.sequence);
    let (p, variant) = (&*own, params.variant());
    let (mut warp, (_, team)) = (block.warp(), block.split_groups::<1, 1, WARPS>());
    let queries = item.rows_of(p, &p.q);
    let share = Strided {
        sequence: item.sequence,
        first: first_tile::<Mask>(p, item.keys, p.q.rows) + item.split * WARPS as u32 + team.index(),
        stride: item.splits * WARPS as u32,
        rows: item.keys,
    };
    let (mut acc_o, mut softmax) =
        (ColAcc::<D, G>::zero(), Softmax::new(<Mask::Scores as Scores>::scale_log2(p)));

    // Each warp copies its tiles through its own pipeline, without block barriers.
    let (places, right): (Rings<E, D, SLOTS, WARPS>, PlaceB<E::As, D, G>) = smem.split();
    let ring = places.own(block);
    let mut walk = CacheWalk::<E, Page::Source, D>::new(&p.cache, share, item.kv_head, warp);
    let mut scale_walk =
        ScaleWalk::<E::Scales<1>, Page::Source>::new(&p.cache, &p.scales, share, item.kv_head, warp);
    let mut copy = |tile: &KvTileSlot<E, D, CpAsync<Warp>>, scales: &_| {
        walk.copy_and([&tile.k, &tile.v], |i| scale_walk.copy(scales, i));
    };
    // The block loads Q before it starts the copies of keys. Q has few bytes, which would otherwise wait
    // behind the keys.
    let (q, factor) = ColFrag::<E::As, D, G>::load::<Q, E>(&queries, warp);
    let mut kv = ring.stream(&mut copy);
    let q = right.keep(q, block);
    let head = head_of(item.sequence, item.kv_head, block);
    let [k_factor, v_factor] = [0, 1].map(|i| match E::Scales::<1>::EXIST {
        true => 1.0,
        false => E::FACTOR * load_per_head(&p.scales[i], head),
    });
    let k_factor = factor.map(|x| x * k_factor);

    // Each column has its own mask and its own state of the scores, because columns are queries of several
    // heads.
    let of = |row| Sequence::of(p, &item.rows(p, queries.unpack(row)[1]), 0, block);
    let seen = |row| seen_by::<Mask>(p, item, Mask::keys(variant, &of(row)), queries.unpack(row)[0]);
    let end = ColVec::<i32, G>::from_fn(warp, |row| seen(row).end);
    let start = ColVec::<i32, G>::from_fn(warp, |row| seen(row).start);
    let position = ColVec::<i32, G>::from_fn(warp, |row| item.rows(p, 0).position(queries.unpack(row)[0]));
    let mask = ColVec::<Mask::Keys, G>::from_fn(warp, |row| Mask::keys(variant, &of(row)));
    let scores = ColVec::<Mask::Scores, G>::from_fn(warp, |row| Mask::scores(p, variant, &of(row)));
    let whole = mask.map(|mask| [mask.whole().start, mask.whole().end]);
    let whole = whole.reduce(|a, b| [a[0].max(b[0]), a[1].min(b[1])]);

    for key in share.tiles() {
        let step = |tile: &KvTile<E, D>, scales: &E::Scales<1>, warp: &mut _| {
            let mut s = ColAcc::<1, G>::product(&tile.k, &q, *warp); // S^T = K Q^T
            let scales = LaneScales::load(scales, *warp);
            if E::Scales::<1>::EXIST {
                s.scale_keys(&scales);
            }
            if E::DTYPE == DType::E4m3 || E::DTYPE == DType::Int8 && Q::SCALED {
                s.scale_columns(&k_factor);
            }
            if matches!(Mask::KIND, MaskKind::Local | MaskKind::Bits) {
                softcap(&mut s, p.softcap, p.scale_log2);
            }
            if Mask::Scores::CHANGES_EACH {
                s.map_at(key, *warp, |x, c, k| scores[c].change_one(x, position[c], k));
            }
            if Mask::LEFT {
                s.keep_from(&start, key, *warp);
            }
            let holes = |key: i32| key < whole[0] || key + 16 > whole[1];
            if Mask::Keys::HOLES && warp.any(holes(key as i32)) {
                let none = f32::NEG_INFINITY;
                s.map_at(key, *warp, |x, c, k| if mask[c].sees(position[c], k) { x } else { none });
            }
            s.keep_before(&end, key, *warp);
            let probs = if E::Scales::<1>::EXIST {
                softmax.observe_scaled(&s, scales.values_log2(), &mut acc_o, *warp);
                softmax.exp_scaled(&s, scales.values(), *warp)
            } else {
                softmax.observe(&s, &mut acc_o, *warp);
                softmax.exp::<E::As, 1>(&s, *warp) // P = exp2(S - max)
            };
            acc_o.add_transposed(&tile.v, &probs, *warp); // O^T += V^T P^T
        };
        kv.turn(&mut warp, step, &mut copy);
    }

    if E::DTYPE == DType::E4m3 {
        acc_o.map(|x| x * v_factor);
    }
    if E::Scales::<1>::EXIST {
        softmax.gather(warp);
    }

    // Warps merge their results through shared memory; splits merge theirs through global memory.
    let mine = (&acc_o, softmax.state());
    let left = kv.reclaim(block).exchange_columns::<E, _, D, G, WARPS>(mine, queries.count(), team, block);
    block.deal_quads::<D>(queries.count(), |row, quad, by| {
        let warps = left.quads(row, quad, |o, [max, sum]| Partial { max, sum, o });
        let all = Partial::NONE.merge(warps);
        if item.splits == 1 {
            store::<Q>(p, item, row, quad, all, &by)
        } else {
            leave::<D>(p, item, row, quad, all, &by)
        }
    });
    if item.splits > 1 && p.counters.count != 0 && block.is_last_of(item.splits, &p.counters, item.counter(p))
    {
        // With 128 registers per thread, 16 loads in flight would spill.
        match WARPS as u32 * C::BLOCKS_PER_SM {
            ..=8 => merge_splits::<Q, _, D, 16>(p, item, [0, 1], block.ended(), block),
            _ => merge_splits::<Q, _, D, 8>(p, item, [0, 1], block.ended(), block),
        }
    }
}

impl<E: TensorCore, const D: usize> Run for DecodeCombine<E, D> {
    #[inline(always)]
    fn run(p: DecodeParams, mut block: Block<Self>, smem: Smem<Self>) {
        combine_all::<Self, E, D>(p, &mut block, smem)
    }
}

impl<E: TensorCore, const D: usize> RunDependent for DecodeCombine<E, D> {
    #[inline(always)]
    fn run_dependent(p: DecodeParams, block: &mut Block<Dependent<Self>>, smem: Smem<Dependent<Self>>) {
        combine_all::<_, E, D>(p, block, smem)
    }
}

impl<E: TensorCore, const D: usize> Run for FewCombine<E, D> {
    #[inline(always)]
    fn run(p: FewParams, mut block: Block<Self>, smem: Smem<Self>) {
        combine_all::<Self, E, D>(p, &mut block, smem)
    }
}

/// The blocks that have a sequence's splits share the rows of the sequence, and merge all splits of these
/// rows. Without a window, [`Local`] also schedules kernels of other masks, which read all keys. A block
/// finds its splits from the lengths, which no kernel of the launch writes, and then waits for the splits.
#[inline(always)]
fn combine_all<C: Kernel<Params: Batch + 'static>, E: TensorCore, const D: usize>(
    p: C::Params,
    block: &mut Block<C>,
    smem: Smem<C>,
) {
    let items = Steps { at: block.index(), step: block.count(), end: u32::MAX >> 1 };
    let few = first_lengths(&p, block.warp());
    smem.rounds(block, items, &p, few, |p, few, index, block, mut smem| {
        let Some(item) = Item::of::<Local, _>(p, few, index, block, &mut smem) else {
            return ControlFlow::Break(());
        };
        if item.counts && item.splits > 1 {
            merge_splits::<E, _, D, 16>(
                &p.own(item.sequence),
                &item,
                [item.split, item.splits],
                block.ended(),
                block,
            )
        }
        if index + block.count() < item.items { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
}
