//! Counts operations and bytes.
use ferroflash::DType;
use ferroflash::plan::Problem;

/// Returns the first key that a query sees, and one past its last key.
fn bounds(p: &Problem, row: usize) -> [i64; 2] {
    let (keys, (left, right)) = (p.seqlen_k as i64, p.mask.sides());
    let position = row as i64 + keys - p.seqlen_q as i64;
    let first = left.map_or(0, |left| (position - i64::from(left)).max(0));
    [first, right.map_or(keys, |right| (position + i64::from(right) + 1).min(keys))]
}

/// Returns floating-point operations: 2 per query, visible key, and column of K and of V.
pub(super) fn flops(p: &Problem) -> f64 {
    products(p, p.head_dim + p.head_dim_v)
}

/// Returns floating-point operations of a backward pass: of Q K^T, dO V^T, P^T dO, dS K and dS^T Q. By
/// convention, the products that a kernel repeats do not count.
pub(super) fn backward_flops(p: &Problem) -> f64 {
    products(p, 3 * p.head_dim + 2 * p.head_dim_v)
}

/// Returns floating-point operations: 2 per query, visible key and column. By convention, a causal square
/// counts as half of the full square.
fn products(p: &Problem, columns: usize) -> f64 {
    let (rows, keys) = (p.seqlen_q as f64, p.seqlen_k as f64);
    let pairs = match p.mask.sides() {
        (None, None) => rows * keys,
        (None, Some(0)) if rows == keys => rows * keys / 2.0,
        _ => {
            let seen = |row| {
                let [first, end] = bounds(p, row);
                (end - first).max(0)
            };
            (0..p.seqlen_q).map(seen).sum::<i64>() as f64
        }
    };
    2.0 * p.batch as f64 * p.heads_q as f64 * columns as f64 * pairs
}

/// Returns the fewest bytes of a backward pass that must cross the memory bus: the forward's tensors and
/// their gradients, and the LSE.
pub(super) fn backward_bytes(p: &Problem) -> f64 {
    2.0 * least_bytes(p, p.dtype) + 4.0 * (p.batch * p.heads_q) as f64 * p.seqlen_q as f64
}

/// Returns the fewest bytes that must cross the memory bus. These bytes are Q, O, and each row of K and V
/// that some query sees, once, in the cache's type.
pub(super) fn least_bytes(p: &Problem, cache: DType) -> f64 {
    let seen = match p.seqlen_q {
        0 => 0,
        rows => (bounds(p, rows - 1)[1] - bounds(p, 0)[0]).max(0),
    };
    let queries = (p.heads_q * p.dtype.bytes()) as f64 * p.seqlen_q as f64;
    let keys = (p.heads_k * cache.bytes()) as f64 * seen as f64;
    // Each row of an int8 cache has two scales in f32.
    let scales = if cache == DType::Int8 { 8.0 * p.heads_k as f64 * seen as f64 } else { 0.0 };
    p.batch as f64 * ((p.head_dim + p.head_dim_v) as f64 * (queries + keys) + scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::request::Mask;

    fn window(left: u32, right: u32) -> Mask {
        Mask::Window { left: Some(left), right: Some(right) }
    }

    #[test]
    fn work_is_counted_by_visible_keys() {
        let full = Problem::new(DType::F16, 2, 8, 3, 16);
        let base = (4 * 2 * 3 * 16) as f64;
        let with = |mask| flops(&full.mask(mask)) / base;
        assert_eq!(with(Mask::Full), 64.0);
        assert_eq!(with(Mask::Causal), 32.0);
        // The rows see 1, 2, 3, 3, 3, 3, 3 and 3 keys.
        assert_eq!(with(window(2, 0)), 21.0);
        let short = full.seqlen_q(2).mask(Mask::Causal);
        assert_eq!(flops(&short) / base, 7.0 + 8.0);
    }

    #[test]
    fn a_backward_pass_has_five_products() {
        let causal = Problem::new(DType::F16, 2, 8, 3, 16).mask(Mask::Causal);
        assert_eq!(backward_flops(&causal), 2.5 * flops(&causal));
        assert_eq!(
            backward_flops(&causal.head_dim_v(32)) / (2 * 2 * 3 * 32) as f64,
            (3 * 16 + 2 * 32) as f64
        );
        let tensors = 8 * 2 * 2 * 8 * 3 * 16;
        assert_eq!(backward_bytes(&causal), (tensors + 4 * 2 * 3 * 8) as f64);
    }

    #[test]
    fn bytes_are_those_of_keys_that_are_seen() {
        let square = Problem::new(DType::F16, 2, 8, 3, 16);
        assert_eq!(least_bytes(&square, DType::F16), (4 * 2 * 2 * 3 * 8 * 16) as f64);
        // One query of 4 heads sees 100 keys of 2 heads, and then the keys of a window.
        let one = Problem::new(DType::F16, 5, 1, 4, 16).seqlen_k(100).heads_k(2);
        let of = |mask, cache| least_bytes(&one.mask(mask), cache) / (2 * 5 * 16) as f64;
        let queries = 4.0 * 2.0;
        assert_eq!(of(Mask::Full, DType::F16), queries + 2.0 * 2.0 * 100.0);
        assert_eq!(of(Mask::Causal, DType::E4m3), queries + 2.0 * 100.0);
        assert_eq!(of(window(9, 0), DType::E4m3), queries + 2.0 * 10.0);
        // The three queries have the positions of the last three keys. The queries see the keys from the
        // first query's window to the end.
        let three = one.seqlen_q(3).mask(window(9, 0));
        assert_eq!(least_bytes(&three, DType::E4m3) / (2 * 5 * 16) as f64, 3.0 * queries + 2.0 * 12.0);
        assert_eq!(least_bytes(&one.seqlen_q(0), DType::F16), 0.0);
    }
}
