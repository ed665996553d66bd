//! Reads the cosines and sines of rotary embedding (RoPE).
use crate::slot::Integer;
use cuda_std::memory::ld_global_v4_b32;
use spec::Angles;
use tile::global::{LoadEight, OwnPart, unpack_eight};
use tile::mma::Unpack;

/// The position of a token, not yet clamped. The kernel loads the position long before it reads angles.
#[derive(Clone, Copy)]
pub struct Position(Integer);

impl Position {
    /// Loads the position of token `token`, for this thread's part of the token.
    #[inline(always)]
    pub fn load(of: &Angles, token: u32, _: &OwnPart) -> Self {
        // SAFETY: the index is below the number of positions, which is at least 1, and the base is a multiple
        // of a position's size, as `Angles` promises.
        Position(unsafe { Integer::load(of.positions, of.wide_positions, token.min(of.tokens - 1)) })
    }

    /// Cosines and sines of angles `8 * i..` at this position. A position before the table's first row reads
    /// the first row, and a position behind the last row reads the last row. The table has elements `E`, or
    /// f32.
    #[inline(always)]
    pub fn angles<E: Unpack>(self, of: &Angles, i: u32) -> [[f32; 8]; 2] {
        // Not `clamp`, which panics if there is no row: the path to the panic would keep lanes apart.
        let row = self.0.value().max(0).min(of.rows as i64 - 1) as u64;
        let i = i.min(of.eights - 1);
        // All loads are in flight before the first conversion.
        let bits = [of.cos, of.sin].map(|base| {
            let at = base.wrapping_add(row.wrapping_mul(of.row_bytes));
            let at = at.wrapping_add((i * if of.wide == 0 { 16 } else { 32 }) as u64);
            // SAFETY: the row exists and has at least 8 * (i + 1) elements of 2 or of 4 bytes, and base and
            // stride are multiples of 16, as `Angles` promises.
            unsafe {
                let second = || ld_global_v4_b32(at.wrapping_add(16));
                [ld_global_v4_b32(at), if of.wide == 0 { [0; 4] } else { second() }]
            }
        });
        bits.map(|bits| if of.wide == 0 { unpack_eight::<E>(bits[0]) } else { spec::F32::widen(bits) })
    }
}
