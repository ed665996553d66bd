//! Forward attention on keys and values of eight bits: TMA copies them into the last panel of a stage, and
//! seven warps convert the stage in place ([`tile::pipeline::StageConverter`]).
//! Consumers run the schedule of [`super::forward`]. Scales cost nothing per element: the keys' scale is a
//! factor of the scores' scale, the values' scale a factor of O.
use crate::hopper::Body;
use crate::hopper::forward::across_tiles;
use crate::hopper::scheduler::{ForwardOf, ParamsOf, Scheduler};
use crate::variant::MaskFn;
use spec::{FwdHopperDequant, HasVariant, Kernel};
use tile::mma::WarpgroupCore;
use tile::tma::Fills;
use tile::{Block, Smem};

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
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<Mask::Params>>>(
        p: &ParamsOf<S>,
        variant: &Mask::Params,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        across_tiles::<S, C, E, F, Mask, W, N, D, STAGES, ORDERED, D>((p, variant), source, block, smem)
    }
}
