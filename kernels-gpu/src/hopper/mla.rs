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
use core::marker::PhantomData;
use core::ops::ControlFlow;
use cuda_std::math::opaque;
use spec::{DecodeParams, MlaHopper, MlaHopperParams};
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::{Team, Warpgroup};
use tile::mma::{AFrag, Acc, RowBounds, RowVec, TensorCore, WarpgroupCore};
use tile::pipeline::{Refilled, Unfilled};
use tile::shared::SharedTile;
use tile::tma::TmaTensor;
use tile::wgmma::{OperandExchange, Seesaw};
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
    (Unfilled<SharedTile<E, 4, D>, CpAsync<Team<2>>>, (Lefts<E>, (Rights<E>, OperandExchange<E, N>)));

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
        self.row(n).find(warp.forget_lane())
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
    (q, shared): Shared<E>,
    keys: Keys<'_, E>,
    mut group: Warpgroup<2>,
) -> PartOfRows<HALF, 2> {
    let (team, warp) = (group.team(), group.warp());
    let q = q.fill(|slot| slot.copy_edge(&mut { stages.queries }, &team));
    let softmax = SharedSoftmax::new(stages.p.scale_log2);
    let page = stages.find(0, warp);
    group.seesaw(q, shared, keys, Softmax::<Mask> { stages, page, warp, softmax, mask: PhantomData })
}

/// A warpgroup's softmax, and its place in the pages.
struct Softmax<'p, Mask> {
    stages: &'p Stages<'p>,
    /// The lane's page of the next stage to fill. The warpgroup looks up pages one stage ahead.
    page: Page,
    warp: Warp,
    softmax: SharedSoftmax,
    mask: PhantomData<Mask>,
}

impl<E: WarpgroupCore, Mask: MaskFn> Seesaw<E, N, HALF> for Softmax<'_, Mask> {
    type Left = LeftMap;
    type Right = RightMap;
    #[inline(always)]
    fn count(&self) -> u32 {
        self.stages.count
    }
    #[inline(always)]
    fn at(&self, n: u32) -> FoundRow {
        self.stages.at(n, self.page)
    }
    #[inline(always)]
    fn look_up(&mut self, n: u32) {
        self.page = self.stages.find(n, self.warp);
    }
    #[inline(always)]
    fn observe(&mut self, s: &mut Acc<1, N>, n: u32) -> (bool, RowVec<1>) {
        self.stages.mask::<Mask>(s, n, self.warp);
        self.softmax.observe(s, self.warp)
    }
    #[inline(always)]
    fn operand(&mut self, s: &Acc<1, N>) -> AFrag<E, 1, N> {
        self.softmax.exp(s)
    }
    #[inline(always)]
    fn values(&self) -> RowVec<1> {
        self.softmax.minus_max()
    }
    #[inline(always)]
    fn adopt(&mut self, minus_max: RowVec<1>, acc_o: &mut Acc<1, HALF>) {
        self.softmax.adopt(minus_max, acc_o, self.warp)
    }
    #[inline(always)]
    fn state(&self) -> [RowVec<1>; 2] {
        self.softmax.state(self.warp)
    }
}
