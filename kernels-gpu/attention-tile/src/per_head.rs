//! Loads a number that each head has: the scale of a quantised cache, or the slope of ALiBi.
use cuda_std::memory::ld_global_b32;
use spec::{CacheScales, Head, HopperPagedParams, PerHead};
use tile::group::Capability;

/// Head `head` of sequence `sequence`, for a kernel.
#[inline(always)]
pub fn head_of(sequence: u32, head: u32, _: &impl Capability) -> Head {
    // SAFETY: only a kernel has a capability, and it names sequences and heads of its launch.
    unsafe { Head::new(sequence, head) }
}

/// The address of head `head`'s number in sequence, or slot, `of`.
#[inline(always)]
pub(crate) fn per_head_at(scale: &PerHead, of: u32, head: u32) -> u64 {
    scale
        .base()
        .wrapping_add((of as u64).wrapping_mul(scale.sequence_bytes()))
        .wrapping_add((head as u64).wrapping_mul(scale.head_bytes()))
}

/// Loads the number of a head.
#[inline(always)]
pub fn load_per_head(scale: &PerHead, of: Head) -> f32 {
    if scale.base() == 0 {
        return scale.value();
    }
    let at = per_head_at(scale, of.sequence(), of.head());
    // SAFETY: each head of each sequence has a number, and the base is a multiple of 4, as `PerHead`
    // promises.
    f32::from_bits(unsafe { ld_global_b32(at) })
}

/// Scales of keys and of values, as a kernel's parameters have them.
pub trait LoadScales: CacheScales<Hopper = HopperPagedParams<Self>> {
    /// Whether there are scales.
    const ARE_SOME: bool;
    /// The scale of a head: of keys (0) or of values (1).
    fn load(&self, which: usize, of: Head) -> f32;
    /// The scales of keys and of values, if there are any.
    fn both(&self) -> Option<&[PerHead; 2]>;
}
impl LoadScales for () {
    const ARE_SOME: bool = false;
    #[inline(always)]
    fn load(&self, _: usize, _: Head) -> f32 {
        1.0
    }
    #[inline(always)]
    fn both(&self) -> Option<&[PerHead; 2]> {
        None
    }
}
impl LoadScales for [PerHead; 2] {
    const ARE_SOME: bool = true;
    #[inline(always)]
    fn load(&self, which: usize, of: Head) -> f32 {
        load_per_head(&self[which], of)
    }
    #[inline(always)]
    fn both(&self) -> Option<&[PerHead; 2]> {
        Some(self)
    }
}
