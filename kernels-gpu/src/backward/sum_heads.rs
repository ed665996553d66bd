//! The sums of dK and dV, where several blocks share the query heads of a key head.
use crate::entries::Run;
use spec::{BwdSumHeads, BwdSumHeadsParams};
use tile::global::{LoadEight, OwnPart, StoreEight};
use tile::{Block, Smem};

impl<E: LoadEight + StoreEight> Run for BwdSumHeads<E> {
    #[inline(always)]
    fn run(p: BwdSumHeadsParams, block: Block<Self>, _: Smem<Self>) {
        let Some(own) = OwnPart::new(&p.parts, &block) else { return };
        let (row, head) = p.heads.div_rem(own.row());
        let (batch, row) = p.rows.div_rem(row);
        for (from, to) in p.from.iter().zip(&p.to) {
            let mut sum = [0.0; 8];
            for share in 0..p.shares {
                let x = E::widen(own.load::<E>(from, [batch, row, head * p.shares + share]));
                sum = core::array::from_fn(|i| sum[i] + x[i]);
            }
            own.store::<E>(to, [batch, row, head], sum);
        }
    }
}
