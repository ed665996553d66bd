//! Rows of new tokens go to their places in a cache. A thread moves eight columns of a key and of its value.
use crate::entries::Run;
use spec::{Append, AppendCopy, AppendParams, Kernel};
use tile::{Block, CacheRow, LoadEight, OwnPart, Smem, StoreEight, load_scale};

/// This thread's part, and where it goes: token, head, row of the cache. `None` where it has none, or its
/// token goes nowhere.
#[inline(always)]
fn own<K: Kernel>(p: &AppendParams, block: &Block<K>) -> Option<(OwnPart, [u32; 2], CacheRow)> {
    let own = OwnPart::of(&p.parts, block)?;
    let (token, head) = p.heads.div_rem(own.row());
    let place = CacheRow::of(&p.cache, &p.slots, token, head)?;
    Some((own, [token, head], place))
}

impl Run for AppendCopy {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        if let Some((own, [token, head], place)) = own(&p, &block) {
            place.store_bits(&own, [own.bits(&p.k, token, head), own.bits(&p.v, token, head)]);
        }
    }
}

impl<E: LoadEight, C: StoreEight> Run for Append<E, C> {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        if let Some((own, [token, head], place)) = own(&p, &block) {
            let (k, v) = (own.load::<E>(&p.k, token, head), own.load::<E>(&p.v, token, head));
            // Divided, not multiplied by an inverse: the bits are those of everybody who fills such caches.
            let (k_scale, v_scale) = (load_scale(&p.scales[0], 0, head), load_scale(&p.scales[1], 0, head));
            place.store_eight::<C>(&own, [k.map(|x| x / k_scale), v.map(|x| x / v_scale)]);
        }
    }
}
