//! Copies new tokens to their slots in a cache. A thread moves eight columns of a key and of its value.
use crate::entries::Run;
use attention_tile::{CacheRow, head_of, load_per_head};
use spec::{Append, AppendCopy, AppendInt8, AppendParams, AppendScaled, Kernel, PartPairs, SCALED_PAIRS};
use tile::global::{BlockScale, OwnPart, RowQuantiser, StoreEight, unpack_eight};
use tile::mma::Unpack;
use tile::{Block, Smem, Warp};

/// The last step of an append: from a token's bits to the cache's.
pub trait Store: Kernel<Params = AppendParams> {
    /// This thread's pair of parts, of a row that a launch distributes as pairs.
    #[inline(always)]
    fn pair(own: OwnPart, _: &PartPairs) -> OwnPart {
        own
    }

    /// Stores this thread's parts of the key and of the value of head `head`. All threads of `warp` store
    /// parts of this row if `Self` needs whole rows ([`spec::AppendInfo::whole_rows`]).
    fn store<const PARTS: usize>(
        p: &AppendParams,
        to: &CacheRow,
        own: &[OwnPart; PARTS],
        head: u32,
        key_value: [[[u32; 4]; PARTS]; 2],
        warp: Warp,
    );
}

impl Store for AppendCopy {
    #[inline(always)]
    fn store<const PARTS: usize>(
        _: &AppendParams,
        to: &CacheRow,
        own: &[OwnPart; PARTS],
        _: u32,
        [k, v]: [[[u32; 4]; PARTS]; 2],
        _: Warp,
    ) {
        for i in 0..PARTS {
            to.store_bits(&own[i], [k[i], v[i]])
        }
    }
}

impl<E: Unpack, C: StoreEight> Store for Append<E, C> {
    #[inline(always)]
    fn store<const PARTS: usize>(
        p: &AppendParams,
        to: &CacheRow,
        own: &[OwnPart; PARTS],
        head: u32,
        [k, v]: [[[u32; 4]; PARTS]; 2],
        _: Warp,
    ) {
        for i in 0..PARTS {
            let [k, v] = [k[i], v[i]].map(unpack_eight::<E>);
            let of = head_of(0, head, &own[i]);
            let [k_scale, v_scale] = [0, 1].map(|which| load_per_head(&p.scales[which], of));
            // The kernel divides by the scale, as other libraries do. A product with the inverse would give
            // other bits.
            to.store_eight::<C>(&own[i], [k.map(|x| x / k_scale), v.map(|x| x / v_scale)])
        }
    }
}

impl<E: Unpack> Store for AppendInt8<E> {
    #[inline(always)]
    fn store<const PARTS: usize>(
        p: &AppendParams,
        to: &CacheRow,
        own: &[OwnPart; PARTS],
        head: u32,
        key_value: [[[u32; 4]; PARTS]; 2],
        warp: Warp,
    ) {
        let rows = key_value.map(|parts| parts.map(unpack_eight::<E>));
        let [k, v] = rows.map(|parts| RowQuantiser::new(parts, warp));
        for i in 0..PARTS {
            to.store_integers(&own[i], [k.round(rows[0][i]), v.round(rows[1][i])])
        }
        to.store_scales(&p.scales, head, [k.scale(), v.scale()], warp);
    }
}

impl<E: Unpack, C: StoreEight> Store for AppendScaled<E, C> {
    /// Pairs of columns without a scale lie behind the blocks, rotated or not.
    #[inline(always)]
    fn pair(own: OwnPart, pairs: &PartPairs) -> OwnPart {
        own.behind_range(pairs, const { SCALED_PAIRS as u32 / 2 })
    }

    #[inline(always)]
    fn store<const PARTS: usize>(
        _: &AppendParams,
        to: &CacheRow,
        own: &[OwnPart; PARTS],
        _: u32,
        [bits, _]: [[[u32; 4]; PARTS]; 2],
        warp: Warp,
    ) {
        let x = bits.map(unpack_eight::<E>);
        let scale = BlockScale::of_eight_lanes(x, warp);
        for i in 0..PARTS {
            to.store_scaled::<C>(&own[i], scale.divide(x[i]), scale.value(), bits[i])
        }
    }
}

/// Moves this thread's part of a token, if the token's slot names a row.
#[inline(always)]
fn append<K: Store>(p: &AppendParams, block: &Block<K>) -> Option<()> {
    let own = OwnPart::new(&p.parts, block)?;
    let (token, head) = p.heads.div_rem(own.row());
    // Keys and values are loaded before the slot, so that the kernel waits for all of them together. Few
    // tokens have no slot.
    let row = [0, token, head];
    let [k, v] = [&p.k, &p.v].map(|tensor| [own.bits(tensor, row)]);
    let to = CacheRow::new(&p.cache, &p.slots, token, head, &own)?;
    K::store(p, &to, &[own], head, [k, v], block.warp());
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

/// Like [`append`], for pairs of parts of rows that are keys alone.
#[inline(always)]
fn append_pairs<K: Store>(p: &AppendParams, block: &Block<K>) -> Option<()> {
    let no_range = PartPairs::neighbours(0, 0);
    let own = K::pair(OwnPart::new(&p.parts, block)?, &no_range);
    let (token, head) = p.heads.div_rem(own.row());
    let [one, two] = own.pair(&no_range);
    let bits = [&one, &two].map(|own| own.bits(&p.k, [0, token, head]));
    let to = CacheRow::new(&p.cache, &p.slots, token, head, &one)?;
    K::store(p, &to, &[one, two], head, [bits, [[0; 4]; 2]], block.warp());
    Some(())
}

impl<E: Unpack, C: StoreEight> Run for AppendScaled<E, C> {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        append_pairs(&p, &block);
    }
}

/// The largest number of parts of a row that half of a warp holds.
const HALF: u32 = 16;

/// Like [`append`], for rows of at most [`HALF`] parts: one half of the warp has the key, the other half has
/// the value, so that fewer lanes idle.
#[inline(always)]
fn append_halves<E: Unpack>(p: &AppendParams, block: &Block<AppendInt8<E>>) -> Option<()> {
    let own = OwnPart::new(&p.parts, block)?;
    let (token, head) = p.heads.div_rem(own.row());
    let ((which, own), row, warp) = (own.of_one(), [0, token, head], block.warp());
    let bits = if which == 0 { own.bits(&p.k, row) } else { own.bits(&p.v, row) };
    let to = CacheRow::new(&p.cache, &p.slots, token, head, &own)?;
    let x = unpack_eight::<E>(bits);
    let quantiser = RowQuantiser::of_half(x, warp);
    to.store_scale(&p.scales, which, head, quantiser.scale(), warp);
    to.of_one(which).store_integers(&own, [quantiser.round(x); 2]);
    Some(())
}

impl<E: Unpack> Run for AppendInt8<E> {
    #[inline(always)]
    fn run(p: AppendParams, block: Block<Self>, _: Smem<Self>) {
        match p.k.chunks.max(p.v.chunks) <= HALF {
            true => append_halves(&p, &block),
            false => append(&p, &block),
        };
    }
}
