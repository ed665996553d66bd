//! Quantises tensors for kernels with products of eight bits: [`QuantiseKv`] makes images of stages,
//! [`RoundFp8`] makes tensors of e4m3, and [`LayFp8`] lays values that are e4m3 already.
use crate::entries::Run;
use cuda_std::math::{opaque, stay_a_loop};
use spec::{
    E4m3, F32, FP8_SHARES, Kernel, LayFp8, LayFp8Params, QuantiseKv, QuantiseParams, RoundFp8, RoundFp8Params,
};
use tile::global::{ColumnMeans, Fp8Scale, GlobalRows, GlobalVec, SHARES, largest_of_share};
use tile::mma::Unpack;
use tile::shared::StageImages;
use tile::{Block, Smem, Warp};

impl<E: Unpack, const N: usize, const D: usize> Run for QuantiseKv<E, N, D> {
    #[inline(always)]
    fn run(p: QuantiseParams, mut block: Block<Self>, mut smem: Smem<Self>) {
        let (head, n) = p.blocks.div_rem(block.index());
        let (batch, head) = p.heads.div_rem(head);
        let [k, v] = [&p.k, &p.v].map(|rows| GlobalRows::<E, D>::new(rows, batch, head));
        let (image, first) =
            (StageImages::<N, D>::new(&p.images, batch, head).image(n, &block), n * N as u32 * 16);
        let means = ColumnMeans::of(&k, block.warp());
        if n == 0 {
            means.store(&GlobalRows::<F32, D>::new(&p.means, batch, head), block.warp());
        }
        image.round_rows(&k, first, &means, &block);
        image.round_columns(&v, first, &mut block, &mut smem);
    }
}

impl<E: Unpack, const N: usize, const D: usize> Run for RoundFp8<E, N, D> {
    #[inline(always)]
    fn run(p: RoundFp8Params, block: Block<Self>, _: Smem<Self>) {
        const { assert!(SHARES == FP8_SHARES, "a warp measures a share") }
        match p.measures {
            0 => round::<E, N, D, Self>(&p, &block),
            _ => measure::<E, D, Self>(&p, &block),
        }
    }
}

impl<const N: usize, const D: usize> Run for LayFp8<N, D> {
    #[inline(always)]
    fn run(p: LayFp8Params, block: Block<Self>, _: Smem<Self>) {
        let (of, n) = p.blocks.div_rem(block.index());
        let (batch, head) = p.heads.div_rem(of);
        let v = GlobalRows::<E4m3, D>::new(&p.v, batch, head);
        let to = GlobalRows::<E4m3, N>::new(&p.to, batch, head);
        let warp = block.warp();
        for i in 0..N as u32 / 4 {
            to.lay_columns(&v, n * N as u32 + i * 4 + warp.index(), warp);
        }
    }
}

/// Measures the largest magnitudes of four shares of a head of Q, K or V.
#[inline(always)]
fn measure<E: Unpack, const D: usize, C: Kernel>(p: &RoundFp8Params, block: &Block<C>) {
    let (warp, per_head) = (block.warp(), SHARES / 4);
    let (of, share) = (block.index() / per_head, block.index() % per_head * 4 + warp.index());
    let (batch, head) = p.heads[1].div_rem(of / 3);
    let maxima = |which: usize| GlobalVec::new(&p.maxima[which], batch, head, SHARES);
    let (largest, to) = match of % 3 {
        0 => {
            let (first, mut largest) = (head * p.group.get(), 0);
            for i in 0..p.group.get() {
                let q = GlobalRows::<E, D>::new(&p.from[0], batch, first + i);
                largest = largest.max(largest_of_share(&q, share, &ColumnMeans::NONE, warp));
            }
            (largest, maxima(0))
        }
        1 => {
            let k = GlobalRows::<E, D>::new(&p.from[1], batch, head);
            (largest_of_share(&k, share, &ColumnMeans::of(&k, warp), warp), maxima(1))
        }
        _ => {
            let v = GlobalRows::<E, D>::new(&p.from[2], batch, head);
            (largest_of_share(&v, share, &ColumnMeans::NONE, warp), maxima(2))
        }
    };
    if warp.lane() == 0 {
        to.store_row(share, f32::from_bits(largest), block);
    }
}

/// The scale of a head. The head's first block stores it.
#[inline(always)]
fn scale<C: Kernel>(
    p: &RoundFp8Params,
    which: usize,
    [batch, head]: [u32; 2],
    is_first: bool,
    block: &Block<C>,
) -> Fp8Scale {
    let warp = block.warp();
    let scale = Fp8Scale::of(&GlobalVec::new(&p.maxima[which], batch, head, SHARES), warp);
    if is_first && warp.index() == 0 && warp.lane() == 0 {
        GlobalVec::new(&p.scales[which], batch, head, 1).store_row(0, scale.scale(), block);
    }
    scale
}

/// Calls `f` with the first of each eight rows of block `n` that a warp has.
#[inline(always)]
fn each_eight_rows<const N: usize>(n: u32, warp: Warp, f: impl Fn(u32)) {
    let (mut row, end) = (n * N as u32 * 16 + warp.index() * 8, (n + 1) * N as u32 * 16);
    while row < end {
        stay_a_loop();
        f(row);
        row += opaque(32);
    }
}

/// Rounds the rows of a block of queries, keys or values.
#[inline(always)]
fn round<E: Unpack, const N: usize, const D: usize, C: Kernel>(p: &RoundFp8Params, block: &Block<C>) {
    let (warp, [of_queries, of_keys]) = (block.warp(), p.tiles);
    if block.index() < of_queries {
        let (of, n) = p.blocks[0].div_rem(block.index());
        let (batch, head) = p.heads[0].div_rem(of);
        let (kv_head, in_group) = p.group.div_rem(head);
        let q = GlobalRows::<E, D>::new(&p.from[0], batch, head);
        let k = GlobalRows::<E, D>::new(&p.from[1], batch, kv_head);
        let to = GlobalRows::<E4m3, D>::new(&p.to[0], batch, head);
        let by = scale(p, 0, [batch, kv_head], n == 0 && in_group == 0, block);
        each_eight_rows::<N>(n, warp, |first| to.round_rows(&q, first, &ColumnMeans::NONE, by, warp));
        if p.lse_lacks.base != 0 {
            let (means, lacks) =
                (ColumnMeans::of(&k, warp), GlobalVec::new(&p.lse_lacks, batch, head, q.rows()));
            each_eight_rows::<N>(n, warp, |first| {
                for row in first..first + 8 {
                    let dot = means.dot(&q, row, warp);
                    if warp.lane() == 0 {
                        lacks.store_row(row, dot * p.scale, block);
                    }
                }
            });
        }
        return;
    }
    let of_values = block.index() >= of_queries + of_keys;
    let (of, n) = p.blocks[1].div_rem(block.index() - of_queries - if of_values { of_keys } else { 0 });
    let (batch, head) = p.heads[1].div_rem(of);
    if of_values {
        let v = GlobalRows::<E, D>::new(&p.from[2], batch, head);
        let to = GlobalRows::<E4m3, N>::new(&p.to[2], batch, head);
        let by = scale(p, 2, [batch, head], n == 0, block);
        for i in 0..N as u32 / 4 {
            to.round_columns(&v, n * N as u32 + i * 4 + warp.index(), by, warp);
        }
    } else {
        let k = GlobalRows::<E, D>::new(&p.from[1], batch, head);
        let to = GlobalRows::<E4m3, D>::new(&p.to[1], batch, head);
        let (means, by) = (ColumnMeans::of(&k, warp), scale(p, 1, [batch, head], n == 0, block));
        each_eight_rows::<N>(n, warp, |first| to.round_rows(&k, first, &means, by, warp));
    }
}
