//! Split-KV on Hopper: several blocks share a work tile's keys and leave partial results in the workspace.
//! [`spec::Combine`] merges them.
use crate::entries::RunAs;
use crate::hopper::HopperKernel;
use crate::hopper::mainloop::Tensors;
use crate::hopper::scheduler::{MapTile, StaticScheduler};
use crate::hopper::wide::one_by_one;
use crate::variant::MaskFn;
use crate::variant::staged::Staged;
use crate::work::KvSplit;
use spec::{
    FwdHopperWide, HasVariant, HopperParams, Kernel, MaskMarker, Partials, Sm90a, Split, SplitParams,
    TensorMap, TileOrder,
};
use tile::global::{GlobalVec, PartialRows};
use tile::mma::WarpgroupCore;
use tile::{Block, Smem};

impl MapTile for KvSplit {
    type Queries = TensorMap;
    type Keys = TensorMap;
    type Params = HopperParams;

    #[inline(always)]
    fn head(&self) -> u32 {
        self.head
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        KvSplit { tile: self.tile.with_head(head), head, ..self }
    }
    #[inline(always)]
    fn queries(&self, row: u32) -> [u32; 3] {
        self.tile.queries(row)
    }
    #[inline(always)]
    fn keys(&self, p: &HopperParams, row: u32) -> [u32; 3] {
        self.tile.keys(p, row)
    }
    #[inline(always)]
    fn lse(&self, _: &HopperParams) -> GlobalVec {
        GlobalVec::from_partials(&self.partials, self.index, self.head)
    }
}

/// The splits of one block. The splits of a work tile are neighbours, so that they end at about the same
/// time.
struct Splits {
    order: TileOrder,
    partials: Partials,
    next: u32,
    blocks: u32,
}

impl Iterator for Splits {
    type Item = KvSplit;
    #[inline(always)]
    fn next(&mut self) -> Option<KvSplit> {
        let Splits { order, partials, .. } = *self;
        let (tile, index) = partials.slices.div_rem(self.next);
        self.next += self.blocks;
        (tile < order.tiles).then(|| KvSplit::new(&order, partials, [tile, index]))
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
> HopperKernel for Split<FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED>>
{
    type Forward = HopperParams;
    #[inline(always)]
    fn enter<C: Kernel<Params: AsRef<HopperParams> + HasVariant<Mask::Params>>>(
        p: &SplitParams<HopperParams>,
        variant: &Mask::Params,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let tensors = Tensors::<E, E, TensorMap, TensorMap, N, D, D>::of(&block);
        let numbers = Mask::Staged::tensor::<C, N>(&block);
        one_by_one::<_, _, _, Mask, W, N, D, D, STAGES, ORDERED>(
            (&p.forward, variant),
            |next, blocks| {
                let order = p.forward.rounds.order;
                StaticScheduler(Splits { order, partials: p.partials, next, blocks })
            },
            (&tensors, &numbers),
            block,
            smem,
            |view, so_far, q_tile, group| {
                // The consumers release Q before they store, so that the copy of the next split's queries
                // does not wait for the stores.
                drop(q_tile);
                view.store(so_far, group, |o, [row, ..], group| {
                    let KvSplit { index, head, partials, .. } = view.tile;
                    let rows = PartialRows::new(&partials, index, head);
                    rows.store_together(o, row + group.first_row(), group.warp())
                })
            },
        );
    }
}

impl<
    E: WarpgroupCore,
    Mask: MaskFn + MaskMarker<Params = ()>,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
> RunAs<Split<Self>, Sm90a> for FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED>
{
    #[inline(always)]
    fn run_as(p: SplitParams<HopperParams>, block: Block<Split<Self>>, smem: Smem<Split<Self>>) {
        Split::<Self>::enter(&p, &(), block, smem)
    }
}
