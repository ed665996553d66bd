//! Tables of angles for [`Rotary`](crate::request::Rotary).
//!
//! Kernels read cosines and sines from tables, and do not compute them from a base. Models scale their
//! frequencies in several ways (linear, NTK, YaRN, Llama 3), so a base alone describes few of them. A sine in
//! f32 also needs a product of position and frequency in more than f32: near position 10^6, this product in
//! f32 is wrong by up to 0.06 (128 columns, bases 10^4 and 5 * 10^5, computed on a CPU). A table costs 8
//! bytes per position and angle, and all layers share it.

/// Returns the frequencies of rotary embedding without scaling: `base^(-2 * i / dims)` for each pair `i` of
/// `dims` columns. Scale the result for YaRN, Llama 3 and others.
pub fn frequencies(base: f64, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims as f64)).collect()
}

/// Returns the cosines and the sines of `position * frequency`, each `[positions, frequencies]`. The function
/// computes in f64 and rounds to f32.
///
/// ```
/// use ferroflash::rotary::{cos_sin, frequencies};
///
/// let [cos, sin] = cos_sin(&frequencies(10_000.0, 128), 4096);
/// assert_eq!((cos.len(), sin[64]), (4096 * 64, 1f32.sin()));
/// ```
pub fn cos_sin(frequencies: &[f64], positions: usize) -> [Vec<f32>; 2] {
    let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |frequency| p as f64 * frequency));
    angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each square of a position's numbers sums to 1, and a position's angle is the sum of the angles of two
    /// positions. Both hold for positions up to 2^20, within the rounding to f32.
    #[test]
    fn angles_of_far_positions_are_right() {
        const FAR: usize = 1 << 20;
        let frequencies = frequencies(10_000.0, 4);
        let [cos, sin] = cos_sin(&frequencies, FAR + 1);
        let at = |position: usize, i: usize| {
            let at = position * frequencies.len() + i;
            (f64::from(cos[at]), f64::from(sin[at]))
        };
        for i in 0..frequencies.len() {
            assert_eq!(at(0, i), (1.0, 0.0));
            for position in [1, 1000, FAR / 2] {
                let ((a, b), (c, d)) = (at(position, i), at(FAR - position, i));
                let (cos, sin) = at(FAR, i);
                let error = (a * c - b * d - cos).abs().max((a * d + b * c - sin).abs());
                assert!(error <= 2e-7, "frequency {i}, {position} + {}: {error:e}", FAR - position);
            }
        }
    }
}
