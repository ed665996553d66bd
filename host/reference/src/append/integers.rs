//! The reference of an append to an int8 cache: each row of a head gets a scale.
use crate::arithmetic::decode;
use ferroflash::DType;

/// Returns the scale of a row and the row's integers. The scale is the largest magnitude divided by 127; a
/// row of zeros has the scale 0. A row with an infinity or a NaN has the scale NaN and zeros. Integers are
/// the nearest to `x / scale`, even between two, and at most 127 in magnitude.
pub(super) fn quantise(row: &[u16], dtype: DType) -> (f32, Vec<i8>) {
    let numbers: Vec<f32> = row.iter().map(|bits| decode(dtype, *bits)).collect();
    if !numbers.iter().all(|x| x.is_finite()) {
        return (f32::NAN, vec![0; row.len()]);
    }
    let scale = numbers.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())) / 127.0;
    let integer = |x: &f32| match scale == 0.0 {
        true => 0,
        false => (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8,
    };
    (scale, numbers.iter().map(integer).collect())
}

#[cfg(test)]
mod tests {
    use super::quantise;
    use crate::arithmetic::encode;
    use ferroflash::DType;

    #[test]
    fn rows_have_their_scales() {
        let row = |numbers: &[f64]| {
            let bits: Vec<u16> = numbers.iter().map(|x| encode(DType::F16, *x)).collect();
            quantise(&bits, DType::F16)
        };
        assert_eq!(row(&[254.0, -254.0, 1.0, 3.0, -5.0]), (2.0, vec![127, -127, 0, 2, -2]));
        assert_eq!(row(&[0.0, -0.0]), (0.0, vec![0, 0]));
        for infinite in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let (scale, integers) = row(&[1.0, infinite]);
            assert!(scale.is_nan() && integers == [0, 0], "{infinite}");
        }
    }
}
