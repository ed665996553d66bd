//! Quantises keys and values for portable kernels with products of eight bits.
use crate::entries::Run;
use crate::round_fp8::OwnRows;
use spec::{QuantiseKv, QuantiseParams};
use tile::global::ColumnMeans;
use tile::mma::Unpack;
use tile::shared::StageImages;
use tile::{Block, Smem};

impl<E: Unpack, const N: usize, const D: usize, const DV: usize> Run for QuantiseKv<E, N, D, DV> {
    #[inline(always)]
    fn run(p: QuantiseParams, mut block: Block<Self>, mut smem: Smem<Self>) {
        let (warp, at, keys) = (block.warp(), p.blocks.div_rem(block.index()), N as u32 * 16);
        let Some((of, n)) = OwnRows::of_block(&p.sequences, 1, &p.heads, at, keys, warp) else { return };
        let [k, v] = [&p.k, &p.v].map(|rows| of.rows::<E, D>(rows));
        let images = StageImages::<N, D, DV>::new(&p.images, of.batch(), of.head());
        let (image, first) = (images.skip(of.begin(keys)).image(n, &block), n * keys);
        let means = ColumnMeans::of(&k, warp);
        if n == 0 {
            means.store(&images.means(of.in_batch()), warp);
        }
        image.round_rows(&k, first, &means, &block);
        if DV > 0 {
            image.round_columns(&v.retyped(), first, &mut block, &mut smem);
        }
    }
}
