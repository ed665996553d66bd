//! Rotates new keys on their way into a cache, and queries beside them. A thread holds both columns of each
//! of its rotated pairs: sixteen columns of a row, in two parts.
use crate::cache::append::Store;
use crate::entries::Run;
use attention_tile::{CacheRow, Position};
use spec::{RotaryAppend, RotaryAppendParams};
use tile::global::{OwnPart, pack_eight, unpack_eight};
use tile::mma::Unpack;
use tile::{Block, Smem};

/// Rotates each pair `(x[i], y[i])` by an angle. Each result is rounded twice, in an order that the reference
/// repeats.
#[inline(always)]
fn turn([x, y]: [[f32; 8]; 2], [cos, sin]: [[f32; 8]; 2]) -> [[f32; 8]; 2] {
    use cuda_std::math::fma;
    [
        core::array::from_fn(|i| fma(x[i], cos[i], -(y[i] * sin[i]))),
        core::array::from_fn(|i| fma(y[i], cos[i], x[i] * sin[i])),
    ]
}

/// Gathers the even and the odd elements of sixteen.
#[inline(always)]
fn unzip([x, y]: [[f32; 8]; 2]) -> [[f32; 8]; 2] {
    let all = |i: usize| if i < 8 { x[i] } else { y[i - 8] };
    [0, 1].map(|odd| core::array::from_fn(|i| all(2 * i + odd)))
}

/// The inverse of [`unzip`].
#[inline(always)]
fn zip(halves: [[f32; 8]; 2]) -> [[f32; 8]; 2] {
    [0, 8].map(|first| core::array::from_fn(|i| halves[i % 2][(first + i) / 2]))
}

/// Rotates pair `i` of a row's parts in f32 and rounds the results to `E`. Pairs outside of the rotated range
/// keep their bits.
#[inline(always)]
fn rotate<E: Unpack>(
    p: &RotaryAppendParams,
    position: Position,
    i: u32,
    bits: [[u32; 4]; 2],
) -> [[u32; 4]; 2] {
    if i >= p.pairs.pairs {
        return bits;
    }
    let (x, by) = (bits.map(unpack_eight::<E>), position.angles::<E>(&p.angles, i));
    match p.interleaved {
        0 => turn(x, by),
        _ => zip(turn(unzip(x), by)),
    }
    .map(pack_eight::<E>)
}

impl<E: Unpack, A: Store> Run for RotaryAppend<E, A> {
    #[inline(always)]
    fn run(p: RotaryAppendParams, block: Block<Self>, _: Smem<Self>) {
        let Some(own) = OwnPart::new(&p.append.parts, &block) else { return };
        let own = A::pair(own, &p.pairs);
        let (token, head) = p.append.heads.div_rem(own.row());
        let i = own.part();
        let [one, two] = own.pair(&p.pairs);
        let position = Position::load(&p.angles, token, &one);
        if head >= p.key_heads {
            let row = [0, token, head - p.key_heads];
            // In place, all other columns have their bits already.
            if i < p.pairs.pairs || p.q.base != p.rotated_q.base {
                let bits = rotate::<E>(&p, position, i, [one.bits(&p.q, row), two.bits(&p.q, row)]);
                one.store_bits(&p.rotated_q, row, bits[0]);
                two.store_bits(&p.rotated_q, row, bits[1]);
            }
            return;
        }
        // Keys and values are loaded before the slot, so that the kernel waits for all of them together. Few
        // tokens have no slot.
        let row = [0, token, head];
        let [k, v] = [&p.append.k, &p.append.v].map(|tensor| [one.bits(tensor, row), two.bits(tensor, row)]);
        let Some(to) = CacheRow::new(&p.append.cache, &p.append.slots, token, head, &one) else { return };
        let to = if p.append.v.chunks == 0 { to.of_one(0) } else { to };
        let k = rotate::<E>(&p, position, i, k);
        A::store(&p.append, &to, &[one, two], head, [k, v], block.warp());
    }
}
