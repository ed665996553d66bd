//! Quantises keys and values for portable kernels with products of eight bits.
use crate::entries::Run;
use crate::lengths;
use crate::round_fp8::OwnRows;
use attention_tile::scaled_row;
use spec::{LayInt8Pages, LayInt8PagesParams, QuantiseKv, QuantiseParams};
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

impl<const N: usize, const D: usize> Run for LayInt8Pages<N, D> {
    #[inline(always)]
    fn run(
        LayInt8PagesParams { lay: p, scales }: LayInt8PagesParams,
        mut block: Block<Self>,
        mut smem: Smem<Self>,
    ) {
        let ((of, n), first) = (p.blocks.div_rem(block.index()), N as u32 * 16);
        let ((sequence, head), first) = (p.heads.div_rem(of), n * first);
        let rows = lengths::length(&p.lengths, sequence, p.max_keys);
        if first < rows {
            let image = StageImages::<N, 0, D>::new(&p.to, sequence, head).image(n, &block);
            let row = |i| scaled_row(&p.cache, (&p.pages, &scales), [sequence, head], first + i, rows);
            image.round_columns_of(row, &mut block, &mut smem);
        }
    }
}
