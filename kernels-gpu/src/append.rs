//! Copies new tokens to their slots in a cache. A thread moves eight columns of a key and of its value.
use crate::entries::Run;
use attention_tile::{CacheRow, load_per_head};
use spec::{Append, AppendCopy, AppendParams, Kernel};
use tile::global::{LoadEight, OwnPart, StoreEight};
use tile::{Block, Smem};

/// This thread's part of a row, the row of the new tensors (batch, token, head), and the cache row. Returns
/// `None` if the thread has no part, or if the token's slot names no row.
#[inline(always)]
fn own<K: Kernel>(p: &AppendParams, block: &Block<K>) -> Option<(OwnPart, [u32; 3], CacheRow)> {
    let own = OwnPart::new(&p.parts, block)?;
    let (token, head) = p.heads.div_rem(own.row());
    let place = CacheRow::new(&p.cache, &p.slots, token, head)?;
    Some((own, [0, token, head], place))
}

impl Run for AppendCopy {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        if let Some((own, row, place)) = own(&p, &block) {
            place.store_bits(&own, [own.bits(&p.k, row), own.bits(&p.v, row)]);
        }
    }
}

impl<E: LoadEight, C: StoreEight> Run for Append<E, C> {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        if let Some((own, row @ [_, _, head], place)) = own(&p, &block) {
            let (k, v) = (own.load::<E>(&p.k, row), own.load::<E>(&p.v, row));
            // The kernel divides by the scale, as other libraries do. A product with the inverse would give
            // other bits.
            let (k_scale, v_scale) =
                (load_per_head(&p.scales[0], 0, head), load_per_head(&p.scales[1], 0, head));
            place.store_eight::<C>(&own, [k.map(|x| x / k_scale), v.map(|x| x / v_scale)]);
        }
    }
}
