//! Reads the cosines and sines of rotary embedding (RoPE).
use crate::slot::integer;
use spec::Angles;
use tile::global::LoadEight;

/// Cosines and sines of angles `8 * i..` at the position of token `token`. A position before the table's
/// first row reads the first row, and a position behind the last row reads the last row. The table has
/// elements `E`, or f32.
#[inline(always)]
pub fn angles<E: LoadEight>(of: &Angles, token: u32, i: u32) -> [[f32; 8]; 2] {
    // SAFETY: the index is below the number of positions, which is at least 1, and the base is a multiple of
    // a position's size, as `Angles` promises.
    let position = unsafe { integer(of.positions, of.wide_positions, token.min(of.tokens - 1)) };
    // Not `clamp`, which panics if there is no row: the path to the panic would keep lanes apart.
    let row = position.max(0).min(of.rows as i64 - 1) as u64;
    let i = i.min(of.eights - 1);
    [of.cos, of.sin].map(|base| {
        let at = base.wrapping_add(row.wrapping_mul(of.row_bytes));
        // SAFETY: the row exists and has at least 8 * (i + 1) elements, and base and stride are multiples of
        // 16, as `Angles` promises. 8 elements have at least 16 bytes.
        unsafe {
            match of.wide {
                0 => E::load_eight(at.wrapping_add((i * 8 * E::BYTES as u32) as u64)),
                _ => spec::F32::load_eight(at.wrapping_add((i * 32) as u64)),
            }
        }
    })
}
