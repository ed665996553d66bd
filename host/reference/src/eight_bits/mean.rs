//! The mean of keys that is subtracted from all keys.

/// Number of keys whose mean is subtracted from all keys, at most.
const SAMPLES: usize = 64;
/// Number of these keys of which the least and the largest number do not count.
const TOGETHER: usize = 8;

/// The mean of each column over evenly spaced rows. Of each eight of them, the least and the largest number
/// do not count, nor do rows that do not make up eight.
pub(super) fn mean<R: Iterator<Item = f64>>(
    count: usize,
    columns: usize,
    row: impl Fn(usize) -> R,
) -> Vec<f64> {
    let samples = count.min(SAMPLES);
    let rows: Vec<Vec<f64>> = (0..samples).map(|sample| row(sample * count / samples).collect()).collect();
    let (each, ends) = if count < TOGETHER { (count.max(1), 0) } else { (TOGETHER, 1) };
    let of_column = |column: usize| {
        let middle = rows.chunks_exact(each).flat_map(|rows| {
            let mut sorted: Vec<f64> = rows.iter().map(|row| row[column]).collect();
            sorted.sort_by(f64::total_cmp);
            sorted.into_iter().skip(ends).take(each - 2 * ends)
        });
        middle.sum::<f64>() / (samples / each * (each - 2 * ends)).max(1) as f64
    };
    (0..columns).map(of_column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_large_key_does_not_set_the_mean() {
        let of = |large: usize| {
            let row =
                move |key: usize| std::iter::once(if key == large { 1000.0 } else { key as f64 / 64.0 });
            move |count| mean(count, 1, row)[0]
        };
        for key in [0, 5, 63] {
            assert!((0.2..0.8).contains(&of(key)(64)), "key {key}");
        }
        // All of a few keys count. The last key of nine does not.
        assert_eq!(of(2)(4), (1000.0 + 4.0 / 64.0) / 4.0);
        assert_eq!((of(8)(9), of(8)(0)), (3.5 / 64.0, 0.0));
    }
}
