//! The gradient of sinks. A sink is one more key, with value 0 and a score of its own. Its weight in a row is
//! P = exp(sink - LSE), its dP is 0, and the gradient of its score is P (dP - delta) = -P delta. The gradient
//! of a head's sink is the sum of these over all rows of the head, in all batches. The gradients of Q, K and
//! V need no more than the LSE, in which the forward has counted the sink.
use crate::entries::Run;
use attention_tile::{head_of, load_per_head};
use core::f32::consts::LOG2_E;
use cuda_std::math::ex2;
use spec::{BwdDsinks, BwdDsinksParams, DSINKS_WARPS};
use tile::beside::HeadValues;
use tile::exchange::SharedWords;
use tile::global::FillInts;
use tile::group::ThreadGroup;
use tile::{Block, Smem, Steps};

impl Run for BwdDsinks {
    /// Padding rows, and rows that see neither a key nor a sink, have delta 0. The order of additions depends
    /// on the rows alone.
    #[inline(always)]
    fn run(p: BwdDsinksParams, mut block: Block<Self>, mut smem: Smem<Self>) {
        let (head, heads, warp) = (block.index(), block.count(), block.warp());
        let sink = load_per_head(&p.sinks.logits(), head_of(0, head, &block)) * LOG2_E;
        let mut sum = 0.0;
        for of_all in (Steps { at: head, step: heads, end: p.delta.heads }) {
            let [minus_lse, delta] = [&p.minus_lse, &p.delta].map(|values| HeadValues::new(values, of_all));
            for row in block.dealt(p.delta.rows) {
                sum -= ex2(sink + minus_lse.get(row)) * delta.get(row);
            }
        }
        let words = [(warp.index(), warp.total(sum).to_bits())].into_iter();
        let sum: f32 = smem.lend(&mut block, |shared: SharedWords<'_, DSINKS_WARPS>, block| {
            let of_warps = shared.write(words, block);
            (0..DSINKS_WARPS as u32).map(|i| f32::from_bits(of_warps.get(i))).sum()
        });
        let gradients = FillInts::new(&p.dsinks, &block);
        gradients.store(head, sum.to_bits(), block.member() == 0);
    }
}
