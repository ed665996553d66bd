//! The reference of merge, in f64, and the problems that merge kernels must solve.
mod edges;
mod work;

pub use edges::{Lie, MergeCase, merge_edges};
pub use work::MergeMemory;

/// Merges O and natural log-sum-exp of a row from partial states and an optional attention sink. A state that
/// has seen no key has an infinite log-sum-exp.
pub fn merge(states: &[(Vec<f64>, f64)], sink: Option<f64>) -> (Vec<f64>, f64) {
    let columns = states.first().map_or(0, |(o, _)| o.len());
    let seen = || states.iter().filter(|(_, lse)| lse.is_finite());
    let max = seen().map(|(_, lse)| *lse).chain(sink).fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return (vec![0.0; columns], max);
    }
    let sum: f64 = seen().map(|(_, lse)| (lse - max).exp()).chain(sink.map(|x| (x - max).exp())).sum();
    let column = |i: usize| seen().map(|(o, lse)| o[i] * (lse - max).exp()).sum::<f64>() / sum;
    ((0..columns).map(column).collect(), max + sum.ln())
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn a_state_has_its_keys_share_of_the_weights() {
        let (o, lse) = merge(&[(vec![1.0], 0.0), (vec![4.0], 3f64.ln())], None);
        let share = 3.0 / 4.0;
        assert!((o[0] - (1.0 - share) - 4.0 * share).abs() < 1e-12, "{o:?}");
        assert!((lse - 4f64.ln()).abs() < 1e-12, "{lse}");
    }

    #[test]
    fn no_key_is_no_weight() {
        let empty = (vec![f64::NAN], f64::NEG_INFINITY);
        assert_eq!(merge(&[empty.clone(), (vec![2.0], f64::INFINITY)], None), (vec![0.0], f64::NEG_INFINITY));
        assert_eq!(merge(&[empty.clone(), (vec![2.0], 5.0)], None), (vec![2.0], 5.0));
        assert_eq!(merge(&[empty], Some(7.0)), (vec![0.0], 7.0));
    }
}
