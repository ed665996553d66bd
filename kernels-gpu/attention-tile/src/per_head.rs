//! Loads a number that each head has: the scale of a quantised cache, or the slope of ALiBi.
use cuda_std::memory::ld_global_b32;
use spec::PerHead;

/// Loads the number of head `head` of sequence `sequence`.
#[inline(always)]
pub fn load_per_head(scale: &PerHead, sequence: u32, head: u32) -> f32 {
    if scale.base == 0 {
        return scale.value;
    }
    let at = scale
        .base
        .wrapping_add((sequence as u64).wrapping_mul(scale.sequence_bytes))
        .wrapping_add((head as u64).wrapping_mul(scale.head_bytes));
    // SAFETY: each head of each sequence has a number, and the base is a multiple of 4, as `PerHead`
    // promises.
    f32::from_bits(unsafe { ld_global_b32(at) })
}
