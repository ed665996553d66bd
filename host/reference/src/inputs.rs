//! Random inputs from a seed.
use super::arithmetic::encode;
use ferroflash::DType;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A stream of random numbers (SplitMix64). A seed gives the same stream on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    /// How many times the stream has given 64 bits.
    drawn: u64,
}

/// The integers of [`Random::normals`] are normal numbers times this number, because few integers are near 0.
pub(super) const INTEGERS: f64 = 32.0;

/// Number of normal numbers in a block of [`KEPT`].
const BLOCK: usize = 1 << 15;

/// The first blocks of a stream.
type Blocks = [OnceLock<Box<[u16]>>; 512];

/// The beginnings of streams of [`Random::normals`], by type, seed and block. Hundreds of test problems draw
/// from the streams of the same small seeds. Without this table, the tests draw for a fifth of their time.
static KEPT: [[Blocks; 64]; 6] = [const { [const { [const { OnceLock::new() }; 512] }; 64] }; 6];

/// Number of further blocks that a process may keep: 64 MB in all.
static ROOM: AtomicUsize = AtomicUsize::new(1024);

impl Random {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Random { seed, drawn: 0 }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.drawn += 1;
        let z = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number with uniform distribution in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number with standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Shuffles `all`.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        (1..all.len()).rev().for_each(|i| all.swap(i, (self.bits() % (i as u64 + 1)) as usize));
    }

    fn number(&mut self, dtype: DType) -> u16 {
        encode(dtype, self.normal() * if dtype == DType::Int8 { INTEGERS } else { 1.0 })
    }

    /// Returns `count` normal numbers in `dtype`, which must have at most 16 bits.
    pub fn normals(&mut self, dtype: DType, count: usize) -> Vec<u16> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            match self.kept(dtype) {
                Some(next) => {
                    let next = &next[..next.len().min(count - all.len())];
                    self.drawn += 2 * next.len() as u64;
                    all.extend_from_slice(next);
                }
                None => all.push(self.number(dtype)),
            }
        }
        all
    }

    /// Returns the next numbers of [`Random::normals`], if [`KEPT`] has room for them.
    fn kept(&self, dtype: DType) -> Option<&'static [u16]> {
        // Each normal number takes 64 bits twice.
        let next = usize::try_from(self.drawn / 2).ok().filter(|_| self.drawn.is_multiple_of(2))?;
        let block = KEPT[dtype as usize].get(usize::try_from(self.seed).ok()?)?.get(next / BLOCK)?;
        if block.get().is_none() {
            ROOM.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1)).ok()?;
        }
        let numbers = block.get_or_init(|| {
            let mut stream = Random { drawn: (next / BLOCK * BLOCK * 2) as u64, ..*self };
            (0..BLOCK).map(|_| stream.number(dtype)).collect()
        });
        Some(&numbers[next % BLOCK..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers begin at the start of a block, the next ones end in a later block, and the last ones
    /// begin between two normal numbers. No block has a seed of 64.
    #[test]
    fn numbers_that_are_kept_are_those_of_the_stream() {
        for (dtype, seed) in [(DType::F16, 7), (DType::Bf16, 7), (DType::F16, 64), (DType::Int8, 7)] {
            let [mut kept, mut drawn] = [Random::new(seed), Random::new(seed)];
            for (bits, count) in [(0, 3), (2, BLOCK), (4, 2 * BLOCK), (1, 5)] {
                (0..bits).for_each(|_| assert_eq!(kept.bits(), drawn.bits()));
                let own: Vec<_> = (0..count).map(|_| drawn.number(dtype)).collect();
                assert!(kept.normals(dtype, count) == own, "{} of seed {seed}", dtype.name());
            }
        }
    }
}
