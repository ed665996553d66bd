//! Compares the entries of a table that scores name, and the derivatives by them (`ScoreMod::entry`,
//! `ScoreMod::weight`), with finite differences: every entry of the table moves by another step.
use super::exact::heads;
use super::gradient::{pairs, permitted, product_of};
use super::report::At;
use super::{Case, Failure};
use kernels_gpu::exact::{Copied, MaskFn, entry, score};

/// The smallest step of an entry.
const STEP: f32 = 1.0 / 16.0;

/// Returns the step of word `word` of the table: another one for nearby words.
fn step(word: usize) -> f32 {
    STEP * (1.0 + (word as u32).wrapping_mul(0x9e37_79b9) as f32 / u32::MAX as f32)
}

/// Returns the copies, with each word of the table `words` moved by `by` steps.
fn moved(copies: &[Copied], (base, count): (u64, usize), by: f32) -> Vec<Copied> {
    let mut copies = copies.to_vec();
    for copy in &mut copies {
        let Some(at) = base.checked_sub(copy.address) else { continue };
        let words = copy.bytes.get_mut(at as usize..).and_then(|bytes| bytes.get_mut(..count * 4));
        for (word, bytes) in words.into_iter().flat_map(|words| words.as_chunks_mut().0).enumerate() {
            *bytes = (f32::from_ne_bytes(*bytes) + by * step(word)).to_ne_bytes();
        }
    }
    copies
}

/// Checks that a score's derivative by its entry lies between the difference to a smaller entry and the
/// difference to a larger one, and that the score reads this entry.
pub(super) fn is_right<M: MaskFn>(case: &Case, params: &M::Params, copies: &[Copied]) -> Result<(), Failure> {
    let Some(table) = M::table(params) else { return Ok(()) };
    let (words, entries) = ((table.base, table.count as usize), table.count as usize / case.heads[0]);
    let [mut before, mut behind] = [vec![], vec![]];
    for (by, scores) in [(-1.0, &mut before), (1.0, &mut behind)] {
        heads(case, moved(copies, words, by), |of| {
            scores.extend(
                pairs(of).map(|[p, k]| score::<M>(params, of, product_of(of, [p, k]) / of.scale(), p, k)),
            );
            Ok(())
        })?;
    }
    let mut around = before.into_iter().zip(behind);
    heads(case, copies.to_vec(), |of| {
        pairs(of).zip(&mut around).try_for_each(|([p, k], (before, behind))| {
            let product = product_of(of, [p, k]) / of.scale();
            let points = [before, score::<M>(params, of, product, p, k), behind].map(f64::from);
            let Some((entry, weight)) = entry::<M>(params, of, product, p, k) else { return Ok(()) };
            if points.iter().any(|score| !score.is_finite()) {
                return Ok(()); // a hidden key has no derivative
            }
            let word = of.head as usize * entries + (entry as usize).min(entries.saturating_sub(1));
            let step = f64::from(step(word));
            let differences = [(points[1] - points[0]) / step, (points[2] - points[1]) / step];
            let largest = points.iter().map(|score| score.abs()).fold(0.0, f64::max);
            if permitted(differences, largest, step).contains(&f64::from(weight)) {
                return Ok(());
            }
            Err(Failure::Entry { at: At::new(case, of, [p, k]), entry, weight, differences })
        })
    })
}
