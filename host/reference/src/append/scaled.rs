//! The reference of an append to rows that have their own scales: one for each block of columns.
use crate::arithmetic::{decode, encode};
use ferroflash::DType;
use ferroflash::spec::E4m3Scaled;

/// Returns the bytes of a row of [`DType::E4m3Scaled`]: e4m3, their scales, and the numbers without a scale.
/// A block's scale is its largest magnitude / 448, in f32, and at least the smallest normal f32. A block with
/// an infinity or a NaN has the scale NaN, and so are its numbers.
pub(super) fn scaled_row(row: &[u16], dtype: DType) -> Vec<u16> {
    let (scaled, plain) = row.split_at(E4m3Scaled::SCALED);
    let (mut numbers, mut scales) = (vec![], vec![]);
    for block in scaled.chunks(E4m3Scaled::PER_SCALE) {
        let block: Vec<f32> = block.iter().map(|bits| decode(dtype, *bits)).collect();
        let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let is_finite = block.iter().all(|x| x.is_finite());
        let scale = if is_finite { (largest / 448.0).max(f32::MIN_POSITIVE) } else { f32::NAN };
        numbers.extend(block.iter().map(|x| encode(DType::E4m3, f64::from(x / scale))));
        scales.extend(scale.to_le_bytes().map(u16::from));
    }
    let plain = plain.iter().flat_map(|bits| bits.to_le_bytes().map(u16::from));
    [numbers, scales, plain.collect()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a row of these numbers, which repeat, in bf16.
    fn row(numbers: &[f32; 576]) -> Vec<u16> {
        let bits: Vec<u16> = numbers.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
        scaled_row(&bits, DType::Bf16)
    }

    fn scale(row: &[u16], block: usize) -> f32 {
        f32::from_le_bytes([0, 1, 2, 3].map(|byte| row[512 + 4 * block + byte] as u8))
    }

    #[test]
    fn blocks_have_their_scales() {
        let mut numbers = [1.0; 576];
        // The blocks have the largest magnitudes 448, 0, 3, and infinity.
        (numbers[7], numbers[127]) = (-448.0, 100.0);
        numbers[128..256].fill(0.0);
        numbers[300] = 3.0;
        numbers[511] = f32::NEG_INFINITY;
        let stored = row(&numbers);
        assert_eq!(stored.len(), E4m3Scaled::ROW_BYTES);
        assert_eq!([0, 1, 2].map(|block| scale(&stored, block)), [1.0, f32::MIN_POSITIVE, 3.0 / 448.0]);
        assert!(scale(&stored, 3).is_nan());
        // -448, 1, 96 (the even neighbour of 100), 0, 448, and NaN in e4m3.
        assert_eq!([7, 0, 127, 128, 300, 400].map(|i| stored[i]), [0xfe, 0x38, 0x6c, 0, 0x7e, 0x7f]);
        let one = half::bf16::ONE.to_le_bytes().map(u16::from);
        assert!(stored[528..].chunks(2).all(|bits| bits == one));
    }
}
