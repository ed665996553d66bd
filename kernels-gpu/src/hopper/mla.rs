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
//!
//! [`super::latents`] has the keys of a work item: of its sequence, through TMA, or of its query's list,
//! which the warpgroups gather.
use crate::capped::times;
use crate::decode::batch::Batch;
use crate::decode::merge::store_empty;
use crate::decode::rows::{finish_rows, side_by_side};
use crate::decode::schedule::{Item, first_lengths, items};
use crate::entries::Run;
use crate::hopper::latents::{Bytes, D, HALF, KEYS, Latents, Left, N, Operands, REST, Right, Stages};
use crate::hopper::shared_softmax::SharedSoftmax;
use crate::partial::Partial;
use crate::variant::MaskFn;
use attention_tile::{head_of, load_per_head};
use core::marker::PhantomData;
use core::ops::ControlFlow;
use spec::{DecodeParams, Kernel, MlaHopper, MlaHopperDequant, MlaHopperParams, Sparse, SparseParams};
use tile::copy::CpAsync;
use tile::exchange::PartOfRows;
use tile::group::{Team, Warpgroup};
use tile::mma::{AFrag, Acc, RowVec, TensorCore, WarpgroupCore};
use tile::pipeline::{ByteRow, Refill, Refilled, Unfilled};
use tile::shared::SharedTile;
use tile::wgmma::{OperandExchange, Seesaw};
use tile::{Block, Smem, Warp};

/// A block's shared memory: Q, keys, P.
type Shared<E, S, P> = (
    Unfilled<SharedTile<E, 4, D>, CpAsync<Team<2>>>,
    (
        Refilled<Left<E>, 2, <P as Latents<E, S>>::Left>,
        (Refilled<Right<E>, 2, <P as Latents<E, S>>::Right>, OperandExchange<E, N>),
    ),
);

/// Makes a kernel of a configuration with these parameters, whose keys have this form.
macro_rules! run {
    ($config:ty, $params:ty, $form:ty $(, $s:ident: $bound:path)?) => {
        impl<E: TensorCore + WarpgroupCore, $($s: $bound + 'static,)? Mask: MaskFn> Run for $config {
            /// Processes a block's work items.
            #[inline(always)]
            fn run(p: $params, mut block: Block<Self>, smem: Smem<Self>) {
                // The combine kernel's blocks take the room of blocks that end.
                block.launch_dependents();
                let items = items(&block);
                let few = first_lengths(&p, block.warp());
                smem.rounds(&mut block, items, &p, few, |p, few, index, block, mut smem| {
                    let Some(item) = Item::of::<Mask, _>(p, few, index, block, &mut smem) else {
                        return ControlFlow::Break(());
                    };
                    if item.counts {
                        attend::<Self, E, $form, Mask>(p, &item.uniform(block.warp()), block, smem);
                    }
                    item.next(index, block)
                });
                store_empty::<E, _, { 2 * HALF }>(&p, &block);
            }
        }
    };
}
run!(MlaHopper<E, Mask>, MlaHopperParams, Operands);
run!(Sparse<MlaHopper<E, Mask>>, SparseParams, Operands);
run!(MlaHopperDequant<E, S, Mask>, DecodeParams, Bytes<S>, S: ByteRow<E>);
run!(Sparse<MlaHopperDequant<E, S, Mask>>, SparseParams, Bytes<S>, S: ByteRow<E>);

/// Processes one work item.
#[inline(always)]
fn attend<C: Kernel<Params: Latents<E, S>>, E: TensorCore + WarpgroupCore, S: 'static, Mask: MaskFn>(
    all: &C::Params,
    item: &Item,
    block: &mut Block<C>,
    smem: Smem<C>,
) {
    let p = all.decode();
    let (needed, warp) = (item.keys.div_ceil(KEYS), block.warp());
    // A work item has a split. Without `item.splits.max(1)`, rustc compiles a panic for a division by zero.
    let count = warp.uniform(needed.saturating_sub(item.split).div_ceil(item.splits.max(1)).max(1));
    // Numbers of eight bits may have one scale for each latent head, a factor of scores and of O.
    let factor = const { <C::Params as Latents<E, S>>::FACTOR };
    let scale = |which: usize, block: &Block<C>| {
        factor.map(|factor| {
            factor * load_per_head(&p.scales[which], head_of(item.sequence, item.kv_head, block))
        })
    };
    let scale_log2 = scale(0, block).map_or(p.scale_log2, |scale| times(p.scale_log2, scale));
    let stages = Stages { all, p, item, queries: item.rows_of(p, &p.q), count, scale_log2 };
    let keys = C::Params::tensors(block);
    let (part, scratch) =
        block.in_warpgroups(smem, |group, shared| seesaw::<_, E, S, Mask>(&stages, shared, &keys, group));
    let left = scratch.exchange_parts(part, block);
    let scale = scale(1, block);
    let whole = |row, quads| {
        let (o, [[max, a], [_, b]]) = left.quads(row, quads);
        let o: [f32; HALF] = side_by_side(o);
        Partial { max, sum: a + b, o: scale.map_or(o, |scale| o.map(|x| x * scale)) }
    };
    finish_rows::<E, _, { 2 * HALF }, { HALF / 4 }, HALF>(&all.own(item.sequence), item, whole, block)
}

/// A warpgroup's turns. Returns its columns of O, with the maxima and with the sums of its stages.
#[inline(always)]
fn seesaw<P: Latents<E, S>, E: WarpgroupCore, S: 'static, Mask: MaskFn>(
    stages: &Stages<'_, P>,
    (q, shared): Shared<E, S, P>,
    keys: &P::Tensors,
    mut group: Warpgroup<2>,
) -> PartOfRows<HALF, 2> {
    let (team, warp) = (group.team(), group.warp());
    // The look-up is in flight while the threads start the copies of Q.
    let (found, kept) = (P::find(stages, 0, warp), P::Kept::default());
    let q = q.fill(|slot| slot.copy_edge(&mut { stages.queries }, &team));
    let softmax = SharedSoftmax::new(stages.scale_log2);
    group.seesaw(
        q,
        shared,
        Softmax::<P, E, S, Mask> { stages, keys, found, kept, warp, softmax, mask: PhantomData },
    )
}

/// A warpgroup's softmax, and its place among the keys.
struct Softmax<'p, P: Latents<E, S>, E: WarpgroupCore, S: 'static, Mask> {
    stages: &'p Stages<'p, P>,
    keys: &'p P::Tensors,
    /// What the lane has looked up for the next stage to fill. The warpgroup looks up one stage ahead.
    found: P::Found,
    /// What the warp keeps of the warpgroup's next stage.
    kept: P::Kept,
    warp: Warp,
    softmax: SharedSoftmax,
    mask: PhantomData<(S, Mask)>,
}

impl<P: Latents<E, S>, E: WarpgroupCore, S, Mask> Softmax<'_, P, E, S, Mask> {
    /// Keeps what the scores of stage `n` need, if it is a stage of warpgroup `index`.
    #[inline(always)]
    fn keep(&mut self, n: u32, index: u32) {
        if n % 2 == index {
            self.kept = P::keep(self.stages, self.found, self.warp);
        }
    }
}

impl<P: Latents<E, S>, E: WarpgroupCore, S, Mask: MaskFn> Seesaw<E, N, HALF, REST>
    for Softmax<'_, P, E, S, Mask>
{
    type Left = P::Left;
    type Right = P::Right;
    #[inline(always)]
    fn count(&self) -> u32 {
        self.stages.count
    }
    #[inline(always)]
    fn look_up(&mut self, n: u32) {
        self.found = P::find(self.stages, n, self.warp);
    }
    #[inline(always)]
    fn left(&mut self, n: u32) -> impl Refill<Left<E>, P::Left> {
        self.keep(n, 0);
        P::left(self.stages, self.keys, n, self.found, self.warp)
    }
    #[inline(always)]
    fn right(&mut self, n: u32) -> impl Refill<Right<E>, P::Right> {
        self.keep(n, 1);
        P::right(self.stages, self.keys, n, self.found, self.warp)
    }
    #[inline(always)]
    fn observe(&mut self, s: &mut Acc<1, N>, n: u32) -> (bool, RowVec<1>) {
        P::hide::<Mask>(self.stages, s, n, self.kept, self.warp);
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
