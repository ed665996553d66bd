//! Numbers the query tiles of a mixed batch without gaps, for the prefill kernel that takes its sequences of
//! many queries. Each warp counts the tiles before its sequences anew, so no warp waits for another.
use crate::entries::Run;
use crate::lengths::Span;
use cuda_std::math::opaque;
use spec::{NumberTiles, NumberTilesParams};
use tile::global::FillInts;
use tile::{Block, Smem, Steps};

impl Run for NumberTiles {
    #[inline(always)]
    fn run(p: NumberTilesParams, block: Block<Self>, _: Smem<Self>) {
        let (warp, first) = (block.warp(), block.index() * Self::SEQUENCES);
        let tiles = |sequence| {
            let queries = Span::load(&p.cu_seqlens_q, sequence, p.rows).many(p.few);
            queries.map_or(0, |queries| p.tile_m.div_rem(queries.rows() - 1).0 + 1)
        };
        let mut before = 0;
        for of in (Steps { at: 0, step: Self::SEQUENCES, end: opaque(first) }) {
            before += tiles(of + warp.lane());
        }
        let sequence = first + warp.lane();
        let own = tiles(sequence);
        let begin = warp.sum(before) + warp.prefix_sum(own) - own;
        FillInts::new(&p.begins, &block).store(sequence, begin, true);
    }
}
