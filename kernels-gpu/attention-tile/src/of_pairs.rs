//! Numbers that belong to a query and a key: bits of a mask, and elements of a bias. Masks and scores have no
//! capability, so the functions that load clamp rows and numbers.
use cuda_std::memory::{ld_global_nc_b8, ld_global_nc_b32, st_global_b32_if};
use spec::{Bias, Bits};
use tile::group::Capability;

/// Byte `i` of the row of the query at position `p`. Rows and bytes that do not exist are the last ones. The
/// function has no branch.
#[inline(always)]
pub fn load_bits(bits: &Bits, p: i32, i: u32) -> u32 {
    let row = ((p - bits.shift()) as u32).min(bits.last_row()) as u64 * bits.row_bytes() as u64;
    let at = bits.base().wrapping_add(row);
    // SAFETY: row and byte exist, as `BitsParams` promises. Kernels do not write bits that they read.
    unsafe { ld_global_nc_b8(at.wrapping_add(i.min(bits.last_byte()) as u64)) }
}

/// The word of key `k` in the row of the query at position `p` of a bias. A word has `per_word` keys. Rows
/// and words that do not exist are the last ones. The function has no branch.
#[inline(always)]
pub fn load_bias<T: Copy>(bias: &Bias<T>, p: i32, k: u32, per_word: u32) -> u32 {
    let row = ((p - bias.shift()) as u32).min(bias.last_row()) as u64 * bias.row_bytes() as u64;
    let at = bias.base().wrapping_add(row);
    // SAFETY: row and word exist, and base and strides are multiples of 4, as `BiasParams` promises. Kernels
    // do not write a bias that they read.
    unsafe { ld_global_nc_b32(at.wrapping_add((k / per_word).min(bias.last_word()) as u64 * 4)) }
}

/// Stores the word of key `k` in row `row` of the gradient of a bias, if both exist. A word has `per_word`
/// keys. No branch.
#[inline(always)]
pub fn store_bias<T: Copy>(
    bias: &Bias<T>,
    [row, k]: [u32; 2],
    per_word: u32,
    word: u32,
    _: &impl Capability,
) {
    let at = bias.base().wrapping_add(row as u64 * bias.row_bytes() as u64);
    let exists = row <= bias.last_row() && k / per_word <= bias.last_word();
    // SAFETY: the store happens only if row and word exist. Base and strides are multiples of 4, as
    // `BiasParams` promises.
    unsafe { st_global_b32_if(at.wrapping_add((k / per_word) as u64 * 4), word, exists) }
}
