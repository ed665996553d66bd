//! Varlen: a block finds the sequence of its work tile from integers on the device. The block then processes
//! the tile like any other.
use crate::entries::{Portable, RunAs};
use crate::forward::Tile;
use crate::lengths::{self, Span};
use crate::softmax::Softmax;
use crate::tensors::{TensorTile, TileTensors, stored};
use crate::work::SequenceTile;
use spec::{Element, FwdParams, Kernel, MaskMarker, Sm80, VariantParams, Varlen, VarlenParams, WorkTile};
use tile::epilogue::Spent;
use tile::global::GlobalRows;
use tile::group::WarpRows;
use tile::mma::{Acc, Mma};
use tile::{Block, Smem, Warp};

impl SequenceTile {
    /// A tile without queries and keys.
    pub(crate) const NONE: Self = SequenceTile {
        tile: WorkTile { m_block: 0, batch: 0, head: 0, kv_head: 0 },
        sequence: 0,
        queries: Span::upto(0),
        keys: Span::upto(0),
        shift: 0,
        before: 0,
    };

    /// The tile of `tile_m` queries at index `index` of the order. Returns `None` if the tile does not exist
    /// at the current lengths. All warps of a block find the same tile.
    #[inline(always)]
    pub(crate) fn of_index(p: &VarlenParams, index: u32, tile_m: u32, warp: Warp) -> Option<Self> {
        let VarlenParams { forward, sequences, .. } = p;
        let tile = forward.order.tile(index);
        let sequence = sequences.find(tile.m_block, |first, step| {
            let sequence = first + warp.lane() * step;
            let begin = sequences.begin(sequence, lengths::start(&p.cu_seqlens_q, sequence), tile_m);
            warp.count(sequence < sequences.count && begin <= tile.m_block)
        })?;
        let queries = Span::load(&p.cu_seqlens_q, sequence, forward.q.rows);
        let m_block = tile.m_block.wrapping_sub(sequences.begin(sequence, queries.first(), tile_m));
        if m_block >= queries.rows().div_ceil(tile_m) {
            return None;
        }
        let keys = Span::load(&p.cu_seqlens_k, sequence, forward.k.rows);
        let keys = keys.used(&p.seqused_k, sequence).uniform(warp);
        let before = m_block * tile_m;
        let aligned = (keys.rows() as i32 - queries.rows() as i32) * p.bottom_right as i32;
        let shift = warp.uniform((aligned + before as i32) as u32) as i32;
        Some(SequenceTile {
            tile: WorkTile { m_block: 0, ..tile },
            sequence,
            queries: queries.skip(before).uniform(warp),
            keys,
            shift,
            before,
        })
    }
}

impl TensorTile for SequenceTile {
    type Keys<S: Element, const D: usize> = GlobalRows<S, D>;

    #[inline(always)]
    fn stored<S: Element, const D: usize>(&self, p: &FwdParams) -> [GlobalRows<S, D>; 2] {
        stored(p, self.tile).map(|rows| rows.part(self.keys.first(), self.keys.rows()))
    }

    #[inline(always)]
    fn tensors<E: Mma, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        tile_m: u32,
        own_values: bool,
    ) -> TileTensors<E, D, DV> {
        TileTensors::of(p, self.tile, self, tile_m, own_values).part(self.queries, self.keys)
    }

    /// Computes the tensors of the results again, from parameters and from integers on the device. If the
    /// main loop kept these tensors, they would take registers there: 128x64 at head dim 128 on sm_90 would
    /// spill 12 bytes.
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
        _: &TileTensors<E, D, DV>,
        acc_o: Acc<W, DV>,
        softmax: &Softmax<W>,
        place: Spent<E, M, DV>,
        mine: WarpRows<M, W>,
    ) {
        self.tensors::<E, D, DV>(p, M as u32 * 16, D != DV).store(acc_o, softmax, place, mine);
    }
}

impl<K: Tile> Portable for Varlen<K> {
    #[inline(always)]
    fn body<C: Kernel>(p: &VarlenParams, variant: &VariantParams<K>, mut block: Block<C>, smem: Smem<C>) {
        if let Some(tile) = SequenceTile::of_index(p, block.index(), K::INFO.tile_m, block.warp()) {
            K::tile(&p.forward, variant, &tile, &mut block, smem)
        }
    }
}

impl<K: Tile<Mask: MaskMarker<Params = ()>>> RunAs<Varlen<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(p: VarlenParams, block: Block<Varlen<K>>, smem: Smem<Varlen<K>>) {
        Varlen::<K>::body(&p, &(), block, smem)
    }
}
