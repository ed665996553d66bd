//! MLA decode in FlashMLA's order (seesaw): two warpgroups take turns at the stages of keys. Each warpgroup
//! has half of O's columns. The owner of a stage computes S and P, and passes P to the other warpgroup.
//!
//! Stage `n` belongs to warpgroup `n % 2`. Its turn is:
//! 1. S(n) = Q K(n)^T starts. Meanwhile the warpgroup waits for P(n - 1) of the other warpgroup.
//! 2. O += P(n - 1) V(n - 1) starts. Meanwhile the warpgroup computes P(n) from S(n).
//! 3. The warpgroup passes P(n) with the maxima, then computes O += P(n) V(n).
//!
//! The maxima pass from turn to turn, as in a loop over all stages. The values are columns of the keys: a
//! stage has two parts, which hold the values of one warpgroup each, and the keys' other columns.
use crate::decode::merge::{finish, store_empty};
use crate::decode::schedule::{Item, in_window, items};
use crate::entries::Run;
use crate::hopper::softmax::BoundedSoftmax;
use crate::lengths::Unchecked;
use crate::partial::Partial;
use crate::variant::MaskFn;
use attention_tile::{FoundRow, InFoundPages, PackedRows, PagedRow};
use core::ops::ControlFlow;
use spec::{DecodeParams, MlaHopper, MlaHopperParams};
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::{Team, Warpgroup};
use tile::mma::{Acc, RowBounds, TensorCore, WarpgroupCore};
use tile::pipeline::{Refilled, Unfilled};
use tile::shared::SharedTile;
use tile::tma::TmaTensor;
use tile::wgmma::{AbKept, AbPassed, AbtOfTwo, Baton};
use tile::{Block, Smem, Warp};

/// Base tiles of columns: of keys, of one warpgroup's values, and of the second part of a stage.
const D: usize = 36;
const HALF: usize = 16;
const REST: usize = D - HALF;
/// Base tiles of keys per stage, and its keys.
const N: usize = 4;
const KEYS: u32 = N as u32 * 16;

/// The tensor maps of a stage's two parts.
type LeftMap = InFoundPages<0>;
type RightMap = InFoundPages<{ HALF as u32 * 16 }>;
/// Both parts of keys in global memory.
type Keys<'b, E> = (&'b TmaTensor<E, N, HALF, LeftMap>, &'b TmaTensor<E, N, REST, RightMap>);
/// The stages of both parts.
type Lefts<E> = Refilled<SharedTile<E, N, HALF>, 2, LeftMap>;
type Rights<E> = Refilled<SharedTile<E, N, REST>, 2, RightMap>;
/// A block's shared memory: Q, keys, P.
type Shared<E> =
    (Unfilled<SharedTile<E, 4, D>, CpAsync<Team<2>>>, (Lefts<E>, (Rights<E>, Baton<E, N>)));

impl<E: TensorCore + WarpgroupCore, Mask: MaskFn> Run for MlaHopper<E, Mask> {
    /// Processes a block's work items.
    #[inline(always)]
    fn run(p: MlaHopperParams, mut block: Block<Self>, smem: Smem<Self>) {
        let items = items(&block);
        let few = Unchecked::load(&p.decode, block.warp().lane());
        smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
            block.forget_thread();
            let Some(item) = Item::of::<Mask, _>(p, few, index, block, &mut smem) else {
                return ControlFlow::Break(());
            };
            if item.counts {
                attend(p, &item, block, smem);
            }
            item.next(index, block)
        });
        store_empty::<E, _, { 2 * HALF }>(&p, &block);
    }
}

/// The stages of a work item.
struct Stages<'p> {
    all: &'p MlaHopperParams,
    p: &'p DecodeParams,
    item: &'p Item,
    queries: PackedRows<'p>,
    /// Number of stages. A split without a key has one stage, whose keys do not exist.
    count: u32,
}

impl Stages<'_> {
    /// The first key of stage `n`.
    #[inline(always)]
    fn key(&self, n: u32) -> u32 {
        (self.item.split + n * self.item.splits) * KEYS
    }

    /// The place of stage `n`'s keys in the cache. Each lane looks up a page.
    #[inline(always)]
    fn find(&self, n: u32, warp: Warp) -> FoundRow {
        let Item { sequence, kv_head, keys, .. } = *self.item;
        let at = PagedRow::new(&self.p.cache, self.all.boxes, sequence, kv_head, self.key(n), keys);
        at.find(warp.lane())
    }

    /// The first key that row `row` does not see.
    #[inline(always)]
    fn end<Mask: MaskFn>(&self, row: u32) -> i32 {
        in_window::<Mask>(self.p, self.queries.unpack(row)[0], self.item.keys).end
    }

    /// Masks the scores of stage `n`. Each row sees at least the keys that earlier rows see.
    #[inline(always)]
    fn mask<Mask: MaskFn>(&self, s: &mut Acc<1, N>, n: u32, warp: Warp) {
        let key = self.key(n);
        if (key + KEYS) as i32 > self.end::<Mask>(0) {
            let first = warp.index() % 4 * 16;
            let end = |row| self.end::<Mask>(first + row) - key as i32;
            s.keep_before(&RowBounds::new(end, warp));
        }
    }
}

/// Processes one work item.
#[inline(always)]
fn attend<E: TensorCore + WarpgroupCore, Mask: MaskFn>(
    p: &MlaHopperParams,
    item: &Item,
    block: &mut Block<MlaHopper<E, Mask>>,
    smem: Smem<MlaHopper<E, Mask>>,
) {
    let (all, warp) = (item.keys.div_ceil(KEYS), block.warp());
    let count = warp.uniform(all.saturating_sub(item.split).div_ceil(item.splits).max(1));
    let stages = Stages { all: p, p: &p.decode, item, queries: item.rows_of(&p.decode, &p.decode.q), count };
    let lefts: TmaTensor<E, N, HALF, LeftMap> = block.tensor(|p| &p.k);
    let rights: TmaTensor<E, N, REST, RightMap> = block.tensor(|p| &p.k);
    let (part, scratch) = block
        .in_warpgroups(smem, |group, shared| seesaw::<E, Mask>(&stages, shared, (&lefts, &rights), group));
    let left = scratch.exchange_parts(part, block);
    let all = |row, quad| {
        let (o, [[max, a], [_, b]]) = left.quad(row, quad);
        Partial { max, sum: a + b, o }
    };
    finish::<E, _, { 2 * HALF }>(&p.decode, item, all, block)
}

/// A warpgroup's turns. Returns its columns of O, with the maxima and with the sums of its stages.
///
/// The warpgroup refills the part that holds its values as soon as it has multiplied them.
#[inline(always)]
fn seesaw<E: WarpgroupCore, Mask: MaskFn>(
    stages: &Stages<'_>,
    (q, (mut left, (mut right, mut baton))): Shared<E>,
    (lefts, rights): Keys<'_, E>,
    mut group: Warpgroup<2>,
) -> PartOfRows<HALF, 2> {
    let (mut team, warp) = (group.team(), group.warp());
    let q = q.fill(|slot| slot.copy_edge(&mut { stages.queries }, &team));
    let mut next = stages.find(0, warp);
    let mut filled = 0;
    let mut fill = |left: &mut Lefts<E>, right: &mut Rights<E>, group: &mut Warpgroup<2>| {
        if filled < stages.count {
            match group.index() {
                0 => left.fill(lefts, next, group),
                _ => right.fill(rights, next, group),
            }
        }
        filled += 1;
        next = stages.find(filled, warp);
    };
    fill(&mut left, &mut right, &mut group);
    fill(&mut left, &mut right, &mut group);
    let q = q.publish(&mut team);
    let mut softmax = BoundedSoftmax::<true>::new(stages.p.scale_log2);
    let mut acc_o = Acc::cleared();
    let mut n = group.index();
    if n == 0 {
        let (l, r) = (left.keep(), right.keep());
        let probs = group.first_turn(&mut baton, AbtOfTwo(&mut Acc::unset(), &q, &l, &r), |s| {
            stages.mask::<Mask>(s, n, warp);
            let (first, probs) = BoundedSoftmax::first(s, stages.p.scale_log2, warp);
            softmax = first;
            (probs, softmax.minus_max())
        });
        group.run(AbKept(&mut acc_o, &probs, &l));
        fill(&mut left, &mut right, &mut group);
        n = 2;
    }
    while n < stages.count {
        let before = group.own([left.keep(), right.keep().first_columns()]);
        let (l, r) = (left.keep(), right.keep());
        let probs = group.turn(
            &mut baton,
            (AbtOfTwo(&mut Acc::unset(), &q, &l, &r), AbPassed(&mut acc_o, &before)),
            &mut softmax,
            |softmax, acc_o, minus_max| softmax.adopt(minus_max, acc_o, warp),
            |softmax, s| {
                stages.mask::<Mask>(s, n, warp);
                softmax.exp(s, warp)
            },
            |softmax, s, acc_o, found, grown| match grown {
                true => (softmax.rebase(s, acc_o, warp), softmax.minus_max()),
                false => (softmax.keep(found), softmax.minus_max()),
            },
        );
        fill(&mut left, &mut right, &mut group);
        group.run(AbKept(&mut acc_o, &probs, &group.own([l, r.first_columns()])));
        fill(&mut left, &mut right, &mut group);
        n += 2;
    }
    if n == stages.count {
        // The last stage was the other warpgroup's.
        let before = group.own([left.keep(), right.keep().first_columns()]);
        group.last_turn(&baton, AbPassed(&mut acc_o, &before), &mut softmax, |softmax, acc_o, minus_max| {
            softmax.adopt(minus_max, acc_o, warp)
        });
    }
    group.part(acc_o, softmax.state(warp))
}
