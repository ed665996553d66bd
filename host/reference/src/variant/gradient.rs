//! Compares the derivatives of scores (`ScoreMod::gradient`) with finite differences.
use super::exact::heads;
use super::report::At;
use super::{Case, Failure};
use kernels_gpu::exact::{Copied, MaskFn, Sequence, gradient, score};
use kernels_gpu::variant::Scores;
use std::ops::RangeInclusive;

/// The scaled products at which a query and a key are compared; the pairs take turns. A softcap of 50 bends
/// large products only.
const PRODUCTS: [f32; 9] = [-3.1, -0.8, 0.3, 1.2, 4.4, -20.0, 60.0, 20.0, -200.0];

/// The difference of scaled products. The functions run in f32, so that a small step would measure roundings.
const STEP: f32 = 1.0 / 16.0;

/// Checks that a score's derivative lies between the difference to a smaller score and the difference to a
/// larger one. A function may have kinks, so these may differ.
pub(super) fn is_right<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    copies: Vec<Copied>,
) -> Result<(), Failure> {
    heads(case, copies, |of| pairs(of).try_for_each(|pair| compare::<M>(case, params, of, pair)))
}

/// Returns the positions and keys of a sequence.
pub(super) fn pairs(of: &Sequence) -> impl Iterator<Item = [i32; 2]> + use<> {
    let (keys, shift) = (of.keys, of.shift);
    (0..of.queries).flat_map(move |query| (0..keys).map(move |k| [query + shift, k]))
}

/// Returns the scaled product of a query's position and a key.
pub(super) fn product_of(of: &Sequence, [p, k]: [i32; 2]) -> f32 {
    PRODUCTS[(p - of.shift + k) as usize % PRODUCTS.len()]
}

/// Returns the derivatives that agree with these differences of scores of at most this magnitude.
pub(super) fn permitted([a, b]: [f64; 2], largest: f64, step: f64) -> RangeInclusive<f64> {
    let slack = (1.0 + a.abs().max(b.abs())) / 128.0 + 4.0 * f64::from(f32::EPSILON) * largest / step;
    a.min(b) - slack..=a.max(b) + slack
}

fn compare<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    of: &Sequence,
    [p, k]: [i32; 2],
) -> Result<(), Failure> {
    let at = product_of(of, [p, k]);
    let product = |by: f32| (at + by) / of.scale();
    let points = [-STEP, 0.0, STEP].map(|by| {
        let product = product(by);
        [product * of.scale(), score::<M>(params, of, product, p, k)].map(f64::from)
    });
    if points.iter().any(|[_, score]| !score.is_finite()) {
        return Ok(()); // a hidden key has no derivative
    }
    let slope = |from: usize| {
        let [[x, y], [next_x, next_y]] = [points[from], points[from + 1]];
        (next_y - y) / (next_x - x)
    };
    let derivative = f64::from(gradient::<M>(params, of, product(0.0), p, k));
    let differences = [0, 1].map(slope);
    let largest = points.iter().map(|[_, score]| score.abs()).fold(0.0, f64::max);
    if permitted(differences, largest, f64::from(STEP)).contains(&derivative) {
        return Ok(());
    }
    let (pair, is_additive) = (At::new(case, of, [p, k]), M::Scores::ADDITIVE);
    Err(Failure::Gradient { at: pair, product: at, derivative, differences, is_additive })
}
