//! OCP's E4M3 (`e4m3fn`) by its definition: one sign bit, four exponent bits (bias 7), three mantissa bits.
//! The format has no infinity. Only 0x7f and 0xff are NaN.

use std::sync::OnceLock;

/// The largest number.
pub const MAX: f32 = 448.0;

/// Returns the value of `bits`.
pub fn decode(bits: u8) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f32.powi(exponent - 10),
    }
}

/// Returns every number that is not negative, in the order of its bits. The order of the bits is also the
/// order of the numbers.
fn numbers() -> &'static [f64; 0x7f] {
    static NUMBERS: OnceLock<[f64; 0x7f]> = OnceLock::new();
    NUMBERS.get_or_init(|| std::array::from_fn(|bits| f64::from(decode(bits as u8))))
}

/// Rounds `x` to the nearest number, ties to even. If `x` is out of range, returns the largest number with
/// `x`'s sign. NaN becomes 0x7f.
pub fn encode(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs().min(f64::from(MAX));
    let numbers = numbers();
    let above = numbers.partition_point(|number| *number < magnitude) as u8;
    let distance = |bits: u8| (magnitude - numbers[usize::from(bits)]).abs();
    // If two numbers are equally near, this line selects the even number.
    let nearest = [above.saturating_sub(1), above]
        .into_iter()
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
    sign | nearest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers() {
        for (bits, number) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x07, 7.0 * 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, MAX),
            (0xc0, -2.0),
        ] {
            assert_eq!(decode(bits), number, "{bits:#04x}");
            assert_eq!(encode(f64::from(number)), bits, "{number}");
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
    }

    #[test]
    fn rounds_to_nearest_even_and_saturates() {
        for (x, number) in [
            (1.0625, 1.0),
            (1.1875, 1.25),
            (1.0626, 1.125),
            (448.0, MAX),
            (464.0, MAX),
            (1e30, MAX),
            (f64::INFINITY, MAX),
            (f64::NEG_INFINITY, -MAX),
            (2f64.powi(-10), 0.0),
            (2f64.powi(-10) * 1.001, 2f32.powi(-9)),
            (3.0 * 2f64.powi(-10), 2f32.powi(-8)),
        ] {
            assert_eq!(decode(encode(x)), number, "{x}");
        }
        assert_eq!((encode(-0.0), encode(f64::NAN)), (0x80, 0x7f));
        for bits in (0..=255u8).filter(|bits| bits & 0x7f != 0x7f) {
            assert_eq!(encode(f64::from(decode(bits))), bits);
        }
    }
}
