//! Sums of products as tensor cores round them.

/// Computes one step of `wgmma` on 16-bit elements for one accumulator.
pub(crate) fn dot_add_hopper(terms: impl Iterator<Item = (f32, f32)> + Clone, c: f32) -> f32 {
    dot_add(terms, c, 25, i32::MIN)
}

/// Computes one step of `wgmma` on e4m3 for one accumulator: 13 fraction bits. (99.99 % of an H100's results
/// are equal in every bit.)
pub(super) fn dot_add_hopper_e4m3(terms: impl Iterator<Item = (f32, f32)> + Clone, c: f32) -> f32 {
    cut(dot_add(terms, c, 13, i32::MIN))
}

/// Computes one step of Ada's `mma` on e4m3 for one accumulator: 13 fraction bits, and subnormal elements
/// have the exponent of the smallest normal ones. (MMA-Sim has this rule; no card has confirmed it.)
pub(super) fn dot_add_ada_e4m3(terms: impl Iterator<Item = (f32, f32)> + Clone, c: f32) -> f32 {
    cut(dot_add(terms, c, 13, -6))
}

/// Keeps 13 fraction bits, rounded toward zero.
fn cut(x: f32) -> f32 {
    if x.is_finite() { f32::from_bits(x.to_bits() & !0x3ff) } else { x }
}

/// Splits `x` into sign, exponent and 24-bit significand (value = significand * 2^(exponent - 23)). The
/// exponent of zero is the smallest one.
fn split(x: f32) -> (bool, i32, u64) {
    let bits = x.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 255) as i32, u64::from(bits & 0x7f_ffff));
    let significand = if exponent == 0 { fraction } else { fraction | 1 << 23 };
    (bits >> 31 != 0, exponent.max(1) - 127, significand)
}

/// Computes the sum of `c` and the products of `terms`, as one step of the tensor core does. The function
/// shifts every term to the largest exponent, and truncates it to `fraction` fraction bits. It then adds the
/// terms exactly, and rounds the sum toward zero. A subnormal input has the exponent that it has as an f32,
/// but at least `lowest`.
pub(super) fn dot_add(
    terms: impl Iterator<Item = (f32, f32)> + Clone,
    c: f32,
    fraction: u32,
    lowest: i32,
) -> f32 {
    let nan = f32::from_bits(0x7fff_ffff);
    // Only infinities and NaN among the inputs are special. Products of finite inputs are exact, even large
    // ones (seen on an H200 with bf16).
    let special = terms
        .clone()
        .filter(|(a, b)| !(a.is_finite() && b.is_finite()))
        .fold(c, |sum, (a, b)| if sum.is_finite() { a * b } else { sum + a * b });
    if !special.is_finite() {
        return if special.is_nan() { nan } else { special };
    }
    const ZERO: i32 = -133;
    let (c_sign, c_exponent, c_significand) = split(c);
    let mut top = if c == 0.0 { ZERO } else { c_exponent };
    for (a, b) in terms.clone() {
        if a != 0.0 && b != 0.0 {
            top = top.max(split(a).1.max(lowest) + split(b).1.max(lowest));
        }
    }
    if top == ZERO {
        let negative = c.is_sign_negative() && terms.clone().all(|(a, b)| (a * b).is_sign_negative());
        return if negative { -0.0 } else { 0.0 };
    }
    // Converts a term to units of 2^(top - fraction), truncated toward zero.
    let align = |sign: bool, exponent: i32, significand: u64, scale: i32| {
        let shift = exponent - scale - (top - fraction as i32);
        let units = if shift >= 0 {
            significand << shift.min(40)
        } else {
            significand.checked_shr(shift.unsigned_abs()).unwrap_or(0)
        };
        if sign { -(units as i64) } else { units as i64 }
    };
    let mut sum = align(c_sign, c_exponent, c_significand, 23);
    for (a, b) in terms {
        let ((sa, ea, ma), (sb, eb, mb)) = (split(a), split(b));
        sum += align(sa != sb, ea + eb, ma * mb, 46);
    }
    toward_zero(sum, top - fraction as i32)
}

/// The number `units * 2^exponent` as f32, rounded toward zero, or infinite if it overflows.
fn toward_zero(units: i64, exponent: i32) -> f32 {
    if units == 0 {
        return 0.0;
    }
    let (negative, magnitude) = (units < 0, units.unsigned_abs());
    let top = 63 - magnitude.leading_zeros() as i32; // position of the leading one
    let lowest = (exponent + top - 23).max(-149); // weight of the last kept bit
    let shift = lowest - exponent;
    let kept = if shift > 0 { magnitude.checked_shr(shift as u32).unwrap_or(0) } else { magnitude << -shift };
    let value = if exponent + top > 127 { f32::INFINITY } else { (kept as f64 * 2f64.powi(lowest)) as f32 };
    if negative { -value } else { value }
}
