//! Forward attention for packed sequences: a block finds out whose tile is its own, by what the device's
//! integers say now; from there on the tile is one like any other.
use crate::entries::RunAs;
use crate::forward::Tile;
use crate::lengths::{self, Span};
use crate::softmax::Softmax;
use crate::tensors::{TensorTile, TileTensors};
use crate::work::SequenceTile;
use spec::{FwdParams, Sm80, Varlen, VarlenParams, WorkTile};
use tile::epilogue::Spent;
use tile::global::GlobalRows;
use tile::group::WarpRows;
use tile::mma::{Acc, Mma};
use tile::{Block, Smem, Warp};

impl SequenceTile {
    /// The tile of `tile_m` queries that is `index`-th in order, if there is one for today's lengths. Every
    /// warp of a block finds the same.
    #[inline(always)]
    fn find(p: &VarlenParams, index: u32, tile_m: u32, warp: Warp) -> Option<Self> {
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
        })
    }
}

impl TensorTile for SequenceTile {
    type Keys<E: Mma, const D: usize> = GlobalRows<E, D>;

    #[inline(always)]
    fn tensors<E: Mma, const D: usize>(&self, p: &FwdParams, tile_m: u32) -> TileTensors<E, D> {
        TileTensors::of(p, self.tile, self, tile_m).part(self.queries, self.keys)
    }

    /// Finds out only now where results go: what follows from parameters alone costs no register in the main
    /// loop, what follows from the device's integers does (128x64 at head dim 128 on sm_90: 12 bytes spilled
    /// there, and none so).
    #[inline(always)]
    fn store<E: Mma, const M: usize, const W: usize, const D: usize>(
        &self,
        p: &FwdParams,
        _: &TileTensors<E, D>,
        acc_o: Acc<W, D>,
        softmax: &Softmax<W>,
        place: Spent<E, M, D>,
        mine: WarpRows<M, W>,
    ) {
        self.tensors::<E, D>(p, M as u32 * 16).store(acc_o, softmax, place, mine);
    }
}

impl<K: Tile> RunAs<Varlen<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(p: VarlenParams, mut block: Block<Varlen<K>>, smem: Smem<Varlen<K>>) {
        if let Some(tile) = SequenceTile::find(&p, block.index(), K::INFO.tile_m, block.warp()) {
            K::tile(&p.forward, &tile, &mut block, smem)
        }
    }
}
