//! Forward attention on keys and values of eight bits: TMA copies them into the last panel of a stage, and
//! three warps of the producer warpgroup convert the stage in place ([`tile::pipeline::StageConverter`]).
//! Consumers run the schedule of [`super::forward`]. Scales cost nothing per element: the keys' scale is a
//! factor of the scores' scale, the values' scale a factor of O.
use crate::hopper::Body;
use crate::hopper::forward::across_tiles;
use crate::hopper::mainloop::KeysBy;
use crate::hopper::scheduler::{ForwardOf, ParamsOf, Scheduler};
use crate::variant::MaskFn;
use spec::{FwdHopperDequant, Kernel, Told};
use tile::mma::{Mma, WarpgroupCore};
use tile::pipeline::StageConverter;
use tile::shared::SharedTile;
use tile::tma::{Fills, TileTransport};
use tile::{Block, Smem};

/// A converter warp: converts key blocks and value blocks in the order in which consumers read them.
#[inline(always)]
pub fn convert<
    S: Scheduler,
    E: Mma,
    F: Fills<E>,
    const N: usize,
    const D: usize,
    const DV: usize,
    const STAGES: usize,
>(
    mut k: StageConverter<SharedTile<E, N, D>, STAGES, KeysBy<S, E, F>>,
    mut v: StageConverter<SharedTile<E, N, DV>, STAGES, KeysBy<S, E, F>>,
) {
    let mut more = F::By::convert(&mut k);
    while more {
        more = F::By::convert(&mut k);
        F::By::convert(&mut v);
    }
}

impl<
    E: WarpgroupCore,
    F: Fills<E>,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> Body for FwdHopperDequant<E, F, Mask, W, N, D, STAGES, ORDERED>
{
    #[inline(always)]
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + Told<Mask::Params>>>(
        p: &ParamsOf<S>,
        variant: &Mask::Params,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        across_tiles::<S, C, E, F, Mask, W, N, D, STAGES, ORDERED>((p, variant), source, block, smem)
    }
}
