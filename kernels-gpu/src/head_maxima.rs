//! The largest score of each query head, from the largest scores of its rows. As integers, numbers have their
//! own order, and a NaN is above all of them: the maximum of a head with a row of NaN is NaN.
use crate::entries::Run;
use crate::lengths::Span;
use spec::{HeadMaxima, HeadMaximaParams, MAXIMA_WARPS};
use tile::exchange::SharedWords;
use tile::global::{FillInts, GlobalInts};
use tile::group::ThreadGroup;
use tile::{Block, Smem};

/// An integer that grows with the number that has these bits.
#[inline(always)]
fn order(bits: u32) -> u32 {
    bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)
}

/// The bits of the number with this [`order`].
#[inline(always)]
fn bits(order: u32) -> u32 {
    order ^ (!(order as i32 >> 31) as u32 | 1 << 31)
}

impl Run for HeadMaxima {
    #[inline(always)]
    fn run(p: HeadMaximaParams, mut block: Block<Self>, mut smem: Smem<Self>) {
        let (head, warp) = (block.index(), block.warp());
        let (rows, maxima) = (Span::of_all(&p.queries), GlobalInts::new(&p.rows));
        let mut most = order(f32::NEG_INFINITY.to_bits());
        for batch in 0..p.batches {
            let first = batch * p.strides[0] + head * p.strides[1] + rows.first();
            for row in block.dealt(rows.rows()) {
                most = most.max(order(maxima.get(first + row) as u32));
            }
        }
        let words = [(warp.index(), warp.largest(most))].into_iter();
        let most = smem.lend(&mut block, |shared: SharedWords<'_, MAXIMA_WARPS>, block| {
            let of_warps = shared.write(words, block);
            (0..MAXIMA_WARPS as u32).map(|i| of_warps.get(i)).fold(0, u32::max)
        });
        FillInts::new(&p.heads, &block).store(head, bits(most), block.member() == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_order_of_numbers() {
        let all =
            [f32::NEG_INFINITY, f32::MIN, -1.0, -f32::MIN_POSITIVE, -0.0, 0.0, 1.0, f32::INFINITY, f32::NAN];
        assert!(all.map(|x| order(x.to_bits())).is_sorted_by(|a, b| a < b));
        assert_eq!(all.map(|x| bits(order(x.to_bits()))), all.map(f32::to_bits));
    }
}
