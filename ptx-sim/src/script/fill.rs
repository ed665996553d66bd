//! The initial content of a buffer, which is computed at the first access.

use super::types::Type;

#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// The buffer is uninitialised.
    Nothing,
    Zero,
    /// Each element contains its index.
    Iota,
    /// The elements are random numbers from this seed: floats between -1 and 1, integers below 100.
    Random(u64),
    /// The buffer contains these bytes, repeated.
    Values(Vec<u8>),
}

/// The multiplier and the increment of the generator (Knuth's MMIX).
const STEP: (u64, u64) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);

/// The state of the generator `n` steps after `state`, computed in log n operations.
fn skip(state: u64, mut n: usize) -> u64 {
    let (mut step, mut all) = (STEP, (1u64, 0u64));
    let then =
        |(a, b): (u64, u64), (c, d): (u64, u64)| (a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d));
    while n > 0 {
        if n & 1 != 0 {
            all = then(all, step);
        }
        (step, n) = (then(step, step), n / 2);
    }
    state.wrapping_mul(all.0).wrapping_add(all.1)
}

impl Fill {
    /// The bytes of a buffer of `ty` from byte `offset` on.
    pub fn write(&self, ty: Type, offset: usize, out: &mut [u8]) {
        let (first, within) = (offset / ty.bytes(), offset % ty.bytes());
        let mut put = |number: &mut dyn FnMut(usize) -> f64| {
            let elements = (first..).flat_map(|index| ty.number(number(index)).into_iter().take(ty.bytes()));
            out.iter_mut().zip(elements.skip(within)).for_each(|(out, byte)| *out = byte);
        };
        match self {
            Fill::Nothing | Fill::Zero => out.fill(0),
            Fill::Iota => put(&mut |index| index as f64),
            Fill::Random(seed) => {
                let mut state = skip(*seed, first);
                put(&mut |_| {
                    state = skip(state, 1);
                    let value = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
                    if ty.is_integer() { (value.abs() * 100.0).floor() } else { value }
                });
            }
            Fill::Values(bytes) => {
                let again = bytes.iter().cycle().skip(offset % bytes.len());
                out.iter_mut().zip(again).for_each(|(out, byte)| *out = *byte);
            }
        }
    }
}
