//! Forward attention with cross-tile overlap: the first S = Q K^T of a work tile runs beside the last O += P
//! V of the previous tile.
use crate::hopper::Body;
use crate::hopper::mainloop::{Attended, Blocks, QTiles, StagedBy, Tensors, View, convert, copy};
use crate::hopper::scheduler::{ForwardOf, ParamsOf, Scheduler};
use crate::variant::MaskFn;
use crate::variant::staged::Staged;
use spec::{FwdHopper, HasVariant, Kernel};
use tile::epilogue::StoreBuffer;
use tile::mma::{Acc, WarpgroupCore};
use tile::pipeline::MbarrierPipeline;
use tile::tma::Fills;
use tile::wgmma::{Ab, Abt};
use tile::{Block, Smem, Warp};

/// A block's shared memory: pipelines of Q, K and V, the TMA store buffer of O, and numbers beside keys.
type Shared<S, E, F, Mask, const W: usize, const N: usize, const D: usize, const STAGES: usize> = (
    MbarrierPipeline<QTiles<E, W, D>, 2, <S as Scheduler>::By>,
    (
        Blocks<S, E, F, N, D, STAGES>,
        (Blocks<S, E, F, N, D, STAGES>, (StoreBuffer<E, D, W>, StagedBy<Mask, W, N>)),
    ),
);

impl<
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const OF: usize,
> Body for FwdHopper<E, Mask, W, N, D, STAGES, ORDERED, OF>
{
    #[inline(always)]
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<Mask::Params>>>(
        p: &ParamsOf<S>,
        variant: &Mask::Params,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        across_tiles::<S, C, E, E, Mask, W, N, D, STAGES, ORDERED, OF>((p, variant), source, block, smem)
    }
}

/// Processes the work tiles of a block, with keys and values of type `F`. Products compute the first `OF`
/// base tiles of columns.
#[inline(always)]
pub fn across_tiles<
    S: Scheduler,
    C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<Mask::Params>>,
    E: WarpgroupCore,
    F: Fills<E>,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const OF: usize,
>(
    (p, variant): (&ParamsOf<S>, &Mask::Params),
    source: impl Fn(u32, u32) -> S,
    block: Block<C>,
    smem: Smem<C>,
) {
    let tensors = Tensors::<E, F, _, _, N, D, D>::of(&block);
    let numbers = Mask::Staged::tensor::<C, N>(&block);
    let [index, count] = [block.index(), block.count()];
    let view = |tile, warp: Warp| View::<_, Mask, W, N>::of(p, variant, tile, &warp);
    let shared: Shared<S, E, F, Mask, W, N, D, STAGES> = smem.split();

    block.specialize(
        shared,
        |(q, (k, (v, ((), staged))))| {
            let (params, staged) = ((p, variant), (staged, &numbers));
            copy::<_, E, F, Mask, W, N, D, D, 2, STAGES>(
                params,
                source(index, count),
                &tensors,
                q,
                k,
                v,
                staged,
            )
        },
        |(_, (k, (v, _)))| convert::<S, E, F, N, D, D, STAGES>(k, v),
        |mut group, (mut q, (mut k, (mut v, (mut out, mut staged))))| {
            let mut tiles = source(index, count);
            let Some(tile) = tiles.receive(&mut q) else { return };
            let (warp, first_row) = (group.warp(), group.first_row());

            // The first product of the block's first tile runs beside no other product.
            let mut now = view(tile, warp);
            let mut q_tile = q.wait();
            let mut s = Acc::unset();
            group.run_ping_pong(Abt(&mut s, &q_tile, &mut k).of_first::<OF>());
            let (softmax, probs, kept) = now.first(&mut s, &mut staged, (first_row, warp));
            let mut so_far = Attended::<_, _, N, OF, ORDERED> { softmax, kept, acc_o: Acc::cleared(), probs };
            loop {
                now.attend::<_, _, _, OF, _, _, _, _>(
                    &mut so_far,
                    &q_tile,
                    &mut k,
                    &mut v,
                    &mut staged,
                    &mut group,
                );
                drop(q_tile);
                let Some(tile) = tiles.receive(&mut q) else { break };

                // The next tile's first S runs beside this tile's last O += P V.
                let next = view(tile, warp);
                q_tile = q.wait();
                let (softmax, probs, kept) = group.overlap(
                    Abt(&mut Acc::unset(), &q_tile, &mut k).of_first::<OF>(),
                    Ab(&mut so_far.acc_o, &so_far.probs, &mut v),
                    &mut (),
                    |(), s| (false, next.first(s, &mut staged, (first_row, warp))),
                    |(), _, _, first, _| first,
                );
                now.store(so_far, &mut group, |o, at, group| out.store(o, &tensors.o, at, group));
                (now, so_far) = (next, Attended { softmax, kept, acc_o: Acc::cleared(), probs });
            }
            group.run(Ab(&mut so_far.acc_o, &so_far.probs, &mut v));
            now.store(so_far, &mut group, |o, at, group| out.store(o, &tensors.o, at, group));
        },
    );
}
