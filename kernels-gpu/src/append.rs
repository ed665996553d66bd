//! Copies new tokens to their slots in a cache. A thread moves eight columns of a key and of its value.
use crate::entries::Run;
use attention_tile::{CacheRow, load_per_head};
use spec::{Append, AppendCopy, AppendParams, Kernel};
use tile::global::{OwnPart, StoreEight, unpack_eight};
use tile::mma::Unpack;
use tile::{Block, Smem};

/// The last step of an append: from a token's bits to the cache's.
pub trait Store: Kernel<Params = AppendParams> {
    /// Stores a part of the key and of the value of head `head`.
    fn store(p: &AppendParams, to: &CacheRow, own: &OwnPart, head: u32, key_value: [[u32; 4]; 2]);
}

impl Store for AppendCopy {
    #[inline(always)]
    fn store(_: &AppendParams, to: &CacheRow, own: &OwnPart, _: u32, key_value: [[u32; 4]; 2]) {
        to.store_bits(own, key_value)
    }
}

impl<E: Unpack, C: StoreEight> Store for Append<E, C> {
    #[inline(always)]
    fn store(p: &AppendParams, to: &CacheRow, own: &OwnPart, head: u32, key_value: [[u32; 4]; 2]) {
        let [k, v] = key_value.map(unpack_eight::<E>);
        let [k_scale, v_scale] = [0, 1].map(|which| load_per_head(&p.scales[which], 0, head));
        // The kernel divides by the scale, as other libraries do. A product with the inverse would give other
        // bits.
        to.store_eight::<C>(own, [k.map(|x| x / k_scale), v.map(|x| x / v_scale)])
    }
}

/// Moves this thread's part of a token, if the token's slot names a row.
#[inline(always)]
fn append<K: Store>(p: &AppendParams, block: &Block<K>) -> Option<()> {
    let own = OwnPart::new(&p.parts, block)?;
    let (token, head) = p.heads.div_rem(own.row());
    let to = CacheRow::new(&p.cache, &p.slots, token, head)?;
    let row = [0, token, head];
    K::store(p, &to, &own, head, [own.bits(&p.k, row), own.bits(&p.v, row)]);
    Some(())
}

impl Run for AppendCopy {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        append(&p, &block);
    }
}

impl<E: Unpack, C: StoreEight> Run for Append<E, C> {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        append(&p, &block);
    }
}
