//! Checks of a sum.
use super::{disjoint, input, names, output, sizes, strides};
use crate::Error;
use crate::request::{Parts, Sum, TensorView};

names!(FIRST "first" SUM "sum");

/// Checks everything except whether a kernel supports the sum in one launch. Returns the sizes of the parts.
pub(crate) fn sum(s: &Sum) -> Result<Parts, Error> {
    let [first, sum] = [&s.first, &s.sum];
    if sum.shape.contains(&0) {
        let expected = "[batch, seqlen, heads, head_dim] must each be 1 or more";
        return Err(Error::invalid(SUM.shape, format!("{:?}", sum.shape), expected));
    }
    if !sum.shape[3].is_multiple_of(8) {
        let feature = format_args!("head_dim {}", sum.shape[3]);
        return Err(Error::unsupported(feature, "kernels take multiples of 8"));
    }
    if first.shape != sum.shape {
        let expected = format_args!("it must be the shape of the sum, {:?}", sum.shape);
        return Err(Error::invalid(FIRST.shape, format!("{:?}", first.shape), expected));
    }
    if first.dtype != sum.dtype {
        let expected = format_args!("it must be the dtype of the sum, {}", sum.dtype.name());
        return Err(Error::invalid(FIRST.dtype, first.dtype.name(), expected));
    }
    if s.count == 0 {
        return Err(Error::invalid("count", 0, "there must be 1 tensor or more"));
    }
    if i64::try_from(s.apart).is_err() {
        return Err(Error::invalid("apart", s.apart, "it must be below 2^63"));
    }
    for (name, view) in [(&FIRST, first), (&SUM, sum)] {
        if !is_contiguous(view) {
            let expected = "the heads of a row and the rows of a batch must be contiguous";
            return Err(strides(name, view, expected));
        }
    }
    let [from, to] = s.flat();
    let parts = [(&FIRST, Some(input(&FIRST, &from)?)), (&SUM, Some(output(&SUM, &to)?))];
    disjoint(&parts, 1)?;
    Ok(sizes(&parts, 1..2))
}

/// Returns whether the heads of a row and the rows of a batch are contiguous.
fn is_contiguous(view: &TensorView) -> bool {
    let [_, rows, heads, columns] = view.shape;
    let is = |dim: usize, stride: usize| view.strides[dim] == stride as i64;
    (heads == 1 || is(2, columns)) && (rows == 1 || is(1, heads.wrapping_mul(columns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn wrong_sums_are_refused_by_name() {
        let view = |address| TensorView::bshd(address, 3 * 4 * 2 * 64, DType::F16, [1, 4, 2, 64]);
        let (first, to) = (view(1 << 40), view(2 << 40));
        let sum_of = |first, apart, count, to| Sum::new(first, apart, count, to);
        let apart = TensorView { strides: [1024, 256, 128, 1], ..first };
        let wrong = [
            (sum_of(first, 512, 0, to), "count"),
            (sum_of(first, 4, 3, to), "first.strides"),
            (sum_of(first, 512, 4, to), "first.elements"),
            (sum_of(apart, 512, 3, to), "first.strides"),
            (sum_of(first, 512, 3, view((1 << 40) + 1024)), "sum"),
            (sum_of(first, 512, 3, TensorView { dtype: DType::Bf16, ..to }), "first.dtype"),
            (sum_of(first, 512, 3, TensorView { shape: [1, 3, 2, 64], ..to }), "first.shape"),
        ];
        for (wrong, name) in wrong {
            let error = sum(&wrong).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        assert!(sum(&sum_of(first, 512, 3, to)).is_ok());
    }
}
