//! MLA decode in FlashMLA's order (seesaw): two warpgroups take turns at the stages of keys. Each warpgroup
//! has half of O's columns. The owner of a stage computes S and P, and passes P to the other warpgroup.
//!
//! Stage `n` belongs to warpgroup `n % 2`. The stages form pairs. The tensor cores compute, for the pair of
//! stages 0 and 1 and the next pair:
//!
//! | tensor cores | meanwhile |
//! |---|---|
//! | S(0), S(1) | warpgroup 0 computes P(0) |
//! | O += P(0) V(0), both halves | warpgroup 1 computes P(1) |
//! | O += P(1) V(1), both halves | stage 2 takes the place of stage 0 |
//! | S(2), S(3) | stage 3 takes the place of stage 1; warpgroup 0 computes P(2) |
//!
//! Warpgroup 0 therefore multiplies the P that it receives before it starts S. Warpgroup 1 starts S first. If
//! both did, each S would wait for the copies of its stage, and P V of the other stage behind it.
//!
//! The maxima pass from turn to turn, as in a loop over all stages. The values are columns of the keys: a
//! stage has two parts, which hold the values of one warpgroup each, and the keys' other columns.
use crate::decode::batch::Batch;
use crate::decode::merge::{finish, store_empty};
use crate::decode::schedule::{Item, first_lengths, in_window, items};
use crate::entries::Run;
use crate::hopper::shared_softmax::SharedSoftmax;
use crate::partial::Partial;
use crate::variant::MaskFn;
use attention_tile::{FoundRow, InFoundPages, PackedRows, Page, PagedRow};
use core::ops::ControlFlow;
use cuda_std::math::opaque;
use spec::{DecodeParams, MlaHopper, MlaHopperParams};
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::{Team, Warpgroup};
use tile::mma::{AFrag, Acc, RowBounds, TensorCore, WarpgroupCore};
use tile::pipeline::{Kept, Published, Refilled, Unfilled};
use tile::shared::SharedTile;
use tile::tma::TmaTensor;
use tile::wgmma::{AbKept, AbPassed, AbtOfTwo, Baton, Turn};
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
type Shared<E> = (Unfilled<SharedTile<E, 4, D>, CpAsync<Team<2>>>, (Lefts<E>, (Rights<E>, Baton<E, N>)));

impl<E: TensorCore + WarpgroupCore, Mask: MaskFn> Run for MlaHopper<E, Mask> {
    /// Processes a block's work items.
    #[inline(always)]
    fn run(p: MlaHopperParams, mut block: Block<Self>, smem: Smem<Self>) {
        let items = items(&block);
        let few = first_lengths(&p, block.warp());
        smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
            let Some(item) = Item::of::<Mask, _>(p, few, index, block, &mut smem) else {
                return ControlFlow::Break(());
            };
            if item.counts {
                attend(p, &item.uniform(block.warp()), block, smem);
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
    /// The first key of stage `n`. LLVM would keep one register for each stage that a loop mentions.
    #[inline(always)]
    fn key(&self, n: u32) -> u32 {
        (self.item.split + opaque(n) * self.item.splits) * KEYS
    }

    /// Looks up the pages of stage `n`'s keys, in each lane another one.
    #[inline(always)]
    fn find(&self, n: u32, warp: Warp) -> Page {
        self.row(n).find(warp.forget_lane().lane())
    }

    /// Stage `n`'s keys, in these pages.
    #[inline(always)]
    fn at(&self, n: u32, page: Page) -> FoundRow {
        self.row(n).within(page)
    }

    /// The first of stage `n`'s keys.
    #[inline(always)]
    fn row(&self, n: u32) -> PagedRow {
        let Item { sequence, kv_head, keys, .. } = *self.item;
        PagedRow::new(&self.p.cache, self.all.boxes, sequence, kv_head, self.key(n), keys)
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
            let (warp, first) = (warp.forget_lane(), warp.index() % 4 * 16);
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
    finish::<E, _, { 2 * HALF }>(&p.own(item.sequence), item, all, block)
}

/// A warpgroup's turns. Returns its columns of O, with the maxima and with the sums of its stages.
#[inline(always)]
fn seesaw<E: WarpgroupCore, Mask: MaskFn>(
    stages: &Stages<'_>,
    (q, (left, (right, baton))): Shared<E>,
    keys: Keys<'_, E>,
    mut group: Warpgroup<2>,
) -> PartOfRows<HALF, 2> {
    let (mut team, warp) = (group.team(), group.warp());
    let q = q.fill(|slot| slot.copy_edge(&mut { stages.queries }, &team));
    // The warpgroup looks up pages one stage ahead.
    let (page, softmax) = (stages.find(0, warp), SharedSoftmax::new(stages.p.scale_log2));
    let mut side = Side { stages, left, right, keys, page, group, warp, softmax, acc_o: Acc::cleared() };
    side.fill(0);
    side.fill(1);
    let q = q.publish(&mut team);
    if side.group.index() == 0 {
        side.even::<Mask>(&q, baton);
    } else {
        side.odd::<Mask>(&q, baton);
    }
    side.group.part(side.acc_o, side.softmax.state(warp))
}

/// A warpgroup's side of the seesaw. It refills the part that holds its values as soon as it has multiplied
/// them.
struct Side<'p, E> {
    stages: &'p Stages<'p>,
    left: Lefts<E>,
    right: Rights<E>,
    keys: Keys<'p, E>,
    /// The lane's page of the next stage to fill.
    page: Page,
    group: Warpgroup<2>,
    warp: Warp,
    softmax: SharedSoftmax,
    acc_o: Acc<1, HALF>,
}

impl<E: WarpgroupCore> Side<'_, E> {
    /// Fills this warpgroup's part of stage `n`.
    #[inline(always)]
    fn fill(&mut self, n: u32) {
        if n < self.stages.count {
            let at = self.stages.at(n, self.page);
            match self.group.index() {
                0 => self.left.fill(n, self.keys.0, at, &mut self.group),
                _ => self.right.fill(n, self.keys.1, at, &mut self.group),
            }
        }
        self.page = self.stages.find(n + 1, self.warp);
    }

    /// This warpgroup's values of stage `n`.
    #[inline(always)]
    fn values(&self, n: u32) -> Kept<SharedTile<E, N, HALF>> {
        self.group.own([self.left.keep(n), self.right.keep(n).first_columns()])
    }

    /// O += P V of its own stage `n`, whose place it then refills.
    #[inline(always)]
    fn multiply(&mut self, probs: &AFrag<E, 1, N>, n: u32) {
        let values = self.values(n);
        self.group.run(AbKept(&mut self.acc_o, probs, &values));
        self.fill(n + 2);
    }

    /// Waits for P of the other warpgroup's stage `n`, runs O += P V, and refills the stage.
    #[inline(always)]
    fn receive(&mut self, baton: &Baton<E, N>, n: u32) -> Turn {
        let (values, warp) = (self.values(n), self.warp);
        let passed = AbPassed(&mut self.acc_o, &values);
        let turn = self.group.receive(baton, passed, &mut self.softmax, |softmax, acc_o, minus_max| {
            softmax.adopt(minus_max, acc_o, warp)
        });
        self.fill(n + 2);
        turn
    }

    /// The turns of warpgroup 0.
    #[inline(always)]
    fn even<Mask: MaskFn>(&mut self, q: &Published<SharedTile<E, 4, D>>, mut baton: Baton<E, N>) {
        let (stages, warp, mut n) = (self.stages, self.warp, 0);
        let mut turn = self.group.first_turn();
        loop {
            let (scores, left, right) = (&mut Acc::unset(), self.left.keep(n), self.right.keep(n));
            let (softmax, acc_o) = (&mut self.softmax, &mut self.acc_o);
            let probs = self.group.pass(turn, &mut baton, AbtOfTwo(scores, q, &left, &right), |s| {
                stages.mask::<Mask>(s, n, warp);
                let (grew, rescale) = softmax.observe(s, warp);
                if grew {
                    acc_o.scale_rows(&rescale);
                }
                (softmax.exp(s), softmax.minus_max())
            });
            self.multiply(&probs, n);
            n += 2;
            if n > stages.count {
                break;
            }
            turn = self.receive(&baton, n - 1);
            if n == stages.count {
                break;
            }
        }
    }

    /// The turns of warpgroup 1.
    #[inline(always)]
    fn odd<Mask: MaskFn>(&mut self, q: &Published<SharedTile<E, 4, D>>, mut baton: Baton<E, N>) {
        let (stages, warp, mut n) = (self.stages, self.warp, 1);
        while n < stages.count {
            let (scores, left, right) = (&mut Acc::unset(), self.left.keep(n), self.right.keep(n));
            let values = self.values(n - 1);
            let probs = self.group.overlapped_turn(
                &mut baton,
                AbtOfTwo(scores, q, &left, &right),
                AbPassed(&mut self.acc_o, &values),
                &mut self.softmax,
                |softmax, acc_o, minus_max| softmax.adopt(minus_max, acc_o, warp),
                |softmax, s| {
                    stages.mask::<Mask>(s, n, warp);
                    let (grew, rescale) = softmax.observe(s, warp);
                    (grew, (softmax.exp(s), rescale))
                },
                |softmax, _, acc_o, (probs, rescale), grew| {
                    if grew {
                        acc_o.scale_rows(&rescale);
                    }
                    (probs, softmax.minus_max())
                },
            );
            self.fill(n + 1);
            self.multiply(&probs, n);
            n += 2;
        }
        if n == stages.count {
            self.receive(&baton, n - 1);
        }
    }
}
