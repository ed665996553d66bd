//! Quantises keys and values for portable kernels with products of eight bits.
use crate::entries::Run;
use spec::{F32, QuantiseKv, QuantiseParams};
use tile::global::{ColumnMeans, GlobalRows};
use tile::mma::Unpack;
use tile::shared::StageImages;
use tile::{Block, Smem};

impl<E: Unpack, const N: usize, const D: usize, const DV: usize> Run for QuantiseKv<E, N, D, DV> {
    #[inline(always)]
    fn run(p: QuantiseParams, mut block: Block<Self>, mut smem: Smem<Self>) {
        let (head, n) = p.blocks.div_rem(block.index());
        let (batch, head) = p.heads.div_rem(head);
        let [k, v] = [&p.k, &p.v].map(|rows| GlobalRows::<E, D>::new(rows, batch, head));
        let (image, first) =
            (StageImages::<N, D, DV>::new(&p.images, batch, head).image(n, &block), n * N as u32 * 16);
        let means = ColumnMeans::of(&k, block.warp());
        if n == 0 {
            means.store(&GlobalRows::<F32, D>::new(&p.means, batch, head), block.warp());
        }
        image.round_rows(&k, first, &means, &block);
        if DV > 0 {
            image.round_columns(&v.retyped(), first, &mut block, &mut smem);
        }
    }
}
