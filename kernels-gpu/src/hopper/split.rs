//! Hopper's forward where blocks share a tile's keys: what they have made of their slices goes to the
//! workspace, for [`spec::Combine`] to merge.
use crate::entries::RunAs;
use crate::hopper::mainloop::Tensors;
use crate::hopper::portion::{Own, Portion};
use crate::hopper::wide::one_by_one;
use crate::mask::{BlockRange, MaskFn, Rows};
use spec::{
    FwdHopperWide, HopperParams, Partials, Sm90a, Split, SplitParams, TensorMap, TileOrder, WorkTile,
};
use tile::{Block, GlobalVec, PartialRows, Smem, WarpgroupCore};

/// A slice of a tile's keys.
#[derive(Clone, Copy)]
struct Slice {
    tile: WorkTile,
    index: u32,
    /// Which of all batches' query heads it is of.
    head: u32,
    partials: Partials,
}

impl Portion for Slice {
    type Queries = TensorMap;
    type Keys = TensorMap;
    type Params = HopperParams;
    const MAY_LACK_KEYS: bool = true;

    #[inline(always)]
    fn rows(&self, p: &HopperParams, tile_m: u32) -> Rows {
        self.tile.rows(p, tile_m)
    }
    /// Where there are more slices than blocks, an empty one begins behind all keys that any row sees: the
    /// block that it takes nevertheless is nobody's.
    #[inline(always)]
    fn share(&self, range: BlockRange) -> BlockRange {
        let slice = range.slice(self.index, self.partials.slices);
        if slice.start < slice.end { slice } else { BlockRange { start: range.end, ..slice } }
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
        GlobalVec::of_slice(&self.partials, self.index, self.head)
    }
}

/// The slices of one block. Those of a tile are neighbours, so that they end together.
struct Slices {
    order: TileOrder,
    partials: Partials,
    next: u32,
    blocks: u32,
}

impl Iterator for Slices {
    type Item = Slice;
    #[inline(always)]
    fn next(&mut self) -> Option<Slice> {
        let Slices { order, partials, .. } = *self;
        let (tile, index) = partials.slices.div_rem(self.next);
        self.next += self.blocks;
        (tile < order.tiles).then(|| {
            let tile = order.tile(tile);
            Slice { tile, index, head: tile.batch * order.heads.get() + tile.head, partials }
        })
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
> RunAs<Split<Self>, Sm90a> for FwdHopperWide<E, Mask, W, N, D, STAGES, ORDERED>
{
    #[inline(always)]
    fn run_as(p: SplitParams<HopperParams>, block: Block<Split<Self>>, smem: Smem<Split<Self>>) {
        let tensors = Tensors::<E, TensorMap, TensorMap, N, D>::of(&block);
        one_by_one::<_, _, _, Mask, W, N, D, STAGES, ORDERED>(
            &p.forward,
            |next, blocks| {
                let order = p.forward.rounds.order;
                Own(Slices { order, partials: p.partials, next, blocks })
            },
            &tensors,
            block,
            smem,
            |view, so_far, q_tile, group| {
                // Before it stores: the next slice's queries need not wait for that.
                drop(q_tile);
                view.store(so_far, group, |o, [row, ..], group| {
                    let Slice { index, head, partials, .. } = view.portion;
                    let rows = PartialRows::of(&partials, index, head);
                    rows.store_together(o, row + group.first_row(), group.warp())
                })
            },
        );
    }
}
