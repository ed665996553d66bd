//! Hopper's forward for wide head dims: O leaves through Q's place, and then the next tile begins.
use crate::entries::Run;
use crate::hopper::Body;
use crate::hopper::mainloop::{Attended, Blocks, QTiles, Tensors, TensorsOf, View, copy};
use crate::hopper::scheduler::{ForwardOf, ParamsOf, Scheduler, StaticScheduler};
use crate::hopper::softmax::BoundedSoftmax;
use crate::mask::MaskFn;
use spec::{FwdHopperWide, HopperParams, Kernel};
use tile::group::Warpgroup;
use tile::mma::{Acc, WarpgroupCore};
use tile::pipeline::{MbarrierPipeline, StageGuard};
use tile::wgmma::{Ab, Abt};
use tile::{Block, Smem};

/// What a block has of shared memory: a place for Q and O, and rings for K and V.
type Shared<S, E, const W: usize, const N: usize, const D: usize, const STAGES: usize> = (
    MbarrierPipeline<QTiles<E, W, D>, 1, <S as Scheduler>::By>,
    (Blocks<S, E, N, D, STAGES>, Blocks<S, E, N, D, STAGES>),
);

/// Work tile after work tile. What has been made of one, whose Q lies in its place still, goes to `store`.
#[inline(always)]
pub fn one_by_one<
    S: Scheduler,
    C: Kernel,
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
>(
    p: &ParamsOf<S>,
    source: impl Fn(u32, u32) -> S,
    tensors: &TensorsOf<S, E, N, D>,
    block: Block<C>,
    smem: Smem<C>,
    store: impl Fn(
        View<'_, S::Tile, Mask, W, N>,
        Attended<E, N, D, ORDERED>,
        StageGuard<'_, QTiles<E, W, D>>,
        &mut Warpgroup<W>,
    ),
) {
    let [index, count] = [block.index(), block.count()];
    let shared: Shared<S, E, W, N, D, STAGES> = smem.split();

    block.specialize(
        shared,
        |(q, (k, v))| copy::<_, E, Mask, W, N, D, 1, STAGES>(p, source(index, count), tensors, q, k, v),
        |mut group, (mut q, (mut k, mut v))| {
            let (warp, first_row) = (group.warp(), group.first_row());
            // Not `for`: the assembler takes a loop that ends at its top for one that lanes leave one by one,
            // and descriptors for theirs.
            let mut tiles = source(index, count);
            let Some(mut tile) = tiles.receive(&mut q) else { return };
            loop {
                let view = View::<_, Mask, W, N>::of(p, tile);
                let q_tile = q.wait();
                let mut s = Acc::unset();
                group.run_ping_pong(Abt(&mut s, &q_tile, &mut k));
                view.see_first(&mut s, first_row, warp);
                let (softmax, probs) = BoundedSoftmax::<ORDERED>::first(&s, p.as_ref().scale_log2, warp);
                let mut so_far = Attended { softmax, acc_o: Acc::cleared(), probs };
                view.attend(&mut so_far, &q_tile, &mut k, &mut v, &mut group);
                group.run(Ab(&mut so_far.acc_o, &so_far.probs, &mut v));
                store(view, so_far, q_tile, &mut group);
                let Some(next) = tiles.receive(&mut q) else { break };
                tile = next;
            }
        },
    );
}

impl<
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Body for FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED>
{
    #[inline(always)]
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>>>>(
        p: &ParamsOf<S>,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let tensors = Tensors::<E, _, _, N, D>::of(&block);
        one_by_one::<_, _, _, Mask, W, N, D, STAGES, ORDERED>(
            p,
            source,
            &tensors,
            block,
            smem,
            |view, so_far, q_tile, group| {
                view.store(so_far, group, |o, at, group| q_tile.store_through(o, &tensors.o, at, group))
            },
        );
    }
}

impl<
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Run for FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED>
{
    #[inline(always)]
    fn run(p: HopperParams, block: Block<Self>, smem: Smem<Self>) {
        <Self as Body>::body(&p, |index, count| StaticScheduler(p.rounds.of(index, count)), block, smem)
    }
}
