//! Forward attention for wide head dims: O is stored through Q's shared memory, so the next work tile starts
//! after the store.
use crate::hopper::Body;
use crate::hopper::mainloop::{
    Attended, Blocks, QTiles, StagedBy, StagedTensor, Tensors, TensorsOf, View, copy,
};
use crate::hopper::scheduler::{ForwardOf, ParamsOf, Scheduler};
use crate::variant::MaskFn;
use crate::variant::staged::Staged;
use spec::{FwdHopperWide, HasVariant, Kernel};
use tile::group::Warpgroup;
use tile::mma::{Acc, WarpgroupCore};
use tile::pipeline::{MbarrierPipeline, StageGuard};
use tile::wgmma::{Ab, Abt};
use tile::{Block, Smem};

/// A block's shared memory: one tile for Q and O, the pipelines of K and V, and the numbers of scores.
type Shared<
    S,
    E,
    Mask,
    const W: usize,
    const N: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
> = (
    MbarrierPipeline<QTiles<E, W, D>, 1, <S as Scheduler>::By>,
    (Blocks<S, E, E, N, D, STAGES>, (Blocks<S, E, E, N, DV, STAGES>, StagedBy<Mask, W, N>)),
);

/// Processes one work tile after the other. `store` gets a tile's results and the guard of the tile's Q.
#[inline(always)]
pub fn one_by_one<
    S: Scheduler,
    C: Kernel,
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
    const ORDERED: bool,
>(
    (p, variant): (&ParamsOf<S>, &Mask::Params),
    source: impl Fn(u32, u32) -> S,
    (tensors, numbers): (&TensorsOf<S, E, E, N, D, DV>, &StagedTensor<Mask, N>),
    block: Block<C>,
    smem: Smem<C>,
    store: impl Fn(
        View<'_, S::Tile, Mask, W, N>,
        Attended<E, Mask::Kept, N, DV, ORDERED>,
        StageGuard<'_, QTiles<E, W, D>>,
        &mut Warpgroup<W>,
    ),
) {
    let [index, count] = [block.index(), block.count()];
    let shared: Shared<S, E, Mask, W, N, D, DV, STAGES> = smem.split();

    block.specialize(
        shared,
        |(q, (k, (v, staged)))| {
            let (params, staged) = ((p, variant), (staged, numbers));
            copy::<_, E, E, Mask, W, N, D, DV, 1, STAGES>(
                params,
                source(index, count),
                tensors,
                q,
                k,
                v,
                staged,
            )
        },
        |_| (),
        |mut group, (mut q, (mut k, (mut v, mut staged)))| {
            let (warp, first_row) = (group.warp(), group.first_row());
            // This is not a `for` loop: if a loop ends at its top, ptxas assumes that lanes leave the loop
            // one by one and have different descriptors.
            let mut tiles = source(index, count);
            let Some(mut tile) = tiles.receive(&mut q) else { return };
            loop {
                let view = View::<_, Mask, W, N>::of(p, variant, tile, &warp);
                let q_tile = q.wait();
                let mut s = Acc::unset();
                group.run_ping_pong(Abt(&mut s, &q_tile, &mut k));
                let (softmax, probs, kept) = view.first(&mut s, &mut staged, (first_row, warp));
                let mut so_far = Attended { softmax, kept, acc_o: Acc::cleared(), probs };
                view.attend::<_, _, _, D, _, _, _, _>(
                    &mut so_far,
                    &q_tile,
                    &mut k,
                    &mut v,
                    &mut staged,
                    &mut group,
                );
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
    const DV: usize,
> Body for FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED, DV>
{
    #[inline(always)]
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<Mask::Params>>>(
        p: &ParamsOf<S>,
        variant: &Mask::Params,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let tensors = Tensors::<E, E, _, _, N, D, DV>::of(&block);
        let numbers = Mask::Staged::tensor::<C, N>(&block);
        one_by_one::<_, _, _, Mask, W, N, D, DV, STAGES, ORDERED>(
            (p, variant),
            source,
            (&tensors, &numbers),
            block,
            smem,
            |view, so_far, q_tile, group| {
                view.store(so_far, group, |o, at, group| q_tile.store_through(o, &tensors.o, at, group))
            },
        );
    }
}
