//! Random inputs from a seed.
use super::arithmetic::encode;
use ferroflash::DType;

/// A stream of random numbers (SplitMix64). A seed gives the same stream on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
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

    /// Returns `count` standard normal numbers in `dtype`.
    pub fn normals(&mut self, dtype: DType, count: usize) -> Vec<u16> {
        (0..count).map(|_| encode(dtype, self.normal())).collect()
    }
}
