//! Compares the derivatives of scores (`ScoreMod::gradient`) with finite differences.
use super::exact::heads;
use super::{Case, Failure};
use kernels_gpu::exact::{Copied, MaskFn, Sequence, gradient, score};
use kernels_gpu::variant::Scores;

/// The scaled products at which a query and a key are compared; the pairs take turns. A softcap of 50 bends
/// large products only.
pub(super) const PRODUCTS: [f32; 9] = [-3.1, -0.8, 0.3, 1.2, 4.4, -20.0, 60.0, 20.0, -200.0];

/// The difference of scaled products. The functions run in f32, so that a small step would measure roundings.
const STEP: f32 = 1.0 / 16.0;

/// Checks that a score's derivative lies between the difference to a smaller score and the difference to a
/// larger one. A function may have kinks, so these may differ.
pub(super) fn is_right<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    copies: Vec<Copied>,
) -> Result<(), Failure> {
    heads(case, copies, |of| {
        for (query, k) in (0..of.queries).flat_map(|query| (0..of.keys).map(move |k| (query, k))) {
            let at = PRODUCTS[(query + k) as usize % PRODUCTS.len()];
            compare::<M>(case, params, of, at, [query + of.shift, k])?;
        }
        Ok(())
    })
}

fn compare<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    of: &Sequence,
    at: f32,
    [p, k]: [i32; 2],
) -> Result<(), Failure> {
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
    let (derivative, [before, behind]) =
        (f64::from(gradient::<M>(params, of, product(0.0), p, k)), [0, 1].map(slope));
    let largest = points.iter().map(|[_, score]| score.abs()).fold(0.0, f64::max);
    let rounding = 4.0 * f64::from(f32::EPSILON) * largest / f64::from(STEP);
    let slack = (1.0 + before.abs().max(behind.abs())) / 128.0 + rounding;
    if (before.min(behind) - slack..=before.max(behind) + slack).contains(&derivative) {
        return Ok(());
    }
    let ([sequence, head], is_additive) = ([of.index, of.head], M::Scores::ADDITIVE);
    let differences = [before, behind];
    let case = Box::new(case.clone());
    Err(Failure::Gradient { case, sequence, head, p, k, at, derivative, differences, is_additive })
}
