//! Split-KV: several blocks share a work tile's keys (FlashDecoding, Dao et al. 2023), and the combine kernel
//! merges their results.
use crate::entries::{Portable, Run, RunAs};
use crate::forward::Tile;
use crate::partial::Partial;
use crate::softmax::Softmax;
use crate::tensors::{TensorTile, TileTensors, stored};
use crate::work::KvSplit;
use core::f32::consts::{LN_2, LOG2_E};
use spec::{
    Combine, CombineParams, Element, FwdParams, Kernel, MaskMarker, Sm80, Split, SplitParams, VariantParams,
};
use tile::epilogue::Spent;
use tile::global::{GlobalRows, GlobalVec, OwnChunk, PartialRows};
use tile::group::WarpRows;
use tile::mma::{Acc, Mma};
use tile::{Block, Smem};

impl TensorTile for KvSplit {
    type Keys<S: Element, const D: usize> = GlobalRows<S, D>;

    #[inline(always)]
    fn stored<S: Element, const D: usize>(&self, p: &FwdParams) -> [GlobalRows<S, D>; 2] {
        stored(p, self.tile)
    }

    #[inline(always)]
    fn tensors<E: Mma, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
        own_values: bool,
    ) -> TileTensors<E, D, DV> {
        TileTensors::of(p, self.tile, self, tile_m, own_values)
    }
    #[inline(always)]
    fn store_nothing_seen<E: Mma, K: Kernel, const M: usize, const D: usize, const DV: usize>(
        &self,
        _: &FwdParams,
        tensors: &TileTensors<E, D, DV>,
        sink: f32,
        block: &Block<K>,
    ) {
        let (first, tile) = (tensors.rows.first, tensors.rows.tile);
        PartialRows::<DV>::new(&self.partials, self.index, self.head).clear(first, tile, block);
        GlobalVec::from_partials(&self.partials, self.index, self.head).fill(sink, first, tile, block);
    }
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize, const DV: usize>(
        &self,
        _: &FwdParams,
        tensors: &TileTensors<E, D, DV>,
        mut acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        _: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        let (row0, warp) = (tensors.rows.first + mine.first(), mine.warp());
        softmax.normalise(&mut acc_o, warp);
        PartialRows::new(&self.partials, self.index, self.head).store(&acc_o, row0, warp);
        GlobalVec::from_partials(&self.partials, self.index, self.head).store(&softmax.lse(), row0, warp);
    }
}

impl<K: Tile<Params = FwdParams>> Portable for Split<K> {
    /// The splits of a work tile are neighbours, so that they end at about the same time.
    #[inline(always)]
    fn body<C: Kernel>(p: &SplitParams, variant: &VariantParams<K>, mut block: Block<C>, smem: Smem<C>) {
        let (tile, index) = p.partials.slices.div_rem(block.index());
        let split = KvSplit::new(&p.forward.order, p.partials, [tile, index]);
        K::tile(&p.forward, variant, &split, &mut block, smem)
    }
}

impl<K: Tile<Params = FwdParams, Mask: MaskMarker<Params = ()>>> RunAs<Split<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(p: SplitParams, block: Block<Split<K>>, smem: Smem<Split<K>>) {
        Split::<K>::body(&p, &(), block, smem)
    }
}

/// Number of splits whose loads are in flight at the same time.
const AT_ONCE: usize = 4;

impl<E: Mma, const D: usize> Run for Combine<E, D> {
    #[inline(always)]
    fn run(p: CombineParams, block: Block<Self>, _: Smem<Self>) {
        let own = OwnChunk::<D>::new(p.rows, &block);
        if own.head() >= p.partials.heads {
            return;
        }
        let (slices, ended) = (p.partials.slices.get(), block.ended());
        let (mut all, mut first) = (Partial::NONE, 0);
        while first < slices {
            let batch: [_; AT_ONCE] = core::array::from_fn(|i| {
                // An index past the last split loads the last split again, with weight 0.
                let slice = (first + i as u32).min(slices - 1);
                let lse = match first + i as u32 == slice {
                    true => GlobalVec::from_partials(&p.partials, slice, own.head()).load_own(
                        &own,
                        f32::NEG_INFINITY,
                        ended,
                    ),
                    false => f32::NEG_INFINITY,
                };
                let o = PartialRows::new(&p.partials, slice, own.head()).load_own(&own, ended);
                Partial::normal(o, lse * LOG2_E)
            });
            all = all.merge(batch);
            first += AT_ONCE as u32;
        }
        let ((o, lse), (batch, head)) = (all.normalised(), p.heads.div_rem(own.head()));
        GlobalRows::<E, D>::new(&p.o, batch, head).store_own(&own, o);
        GlobalVec::new(&p.lse, batch, head, p.partials.rows).store_own(&own, lse * LN_2);
    }
}
