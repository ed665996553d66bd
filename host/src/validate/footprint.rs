//! Footprints: the bytes of a view, and whether two views overlap.

/// The bytes of a view: `base + sum(index * stride) + 0..unit`, each index below its extent. Strides are in
/// bytes, and no stride is negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    pub base: u64,
    /// The number of bytes of one element.
    pub unit: u64,
    /// Dimensions: `(extent, stride in bytes)`.
    dims: [(u64, u64); 4],
    /// One past the last byte, or `None` beyond 64 bits. Each check of an overlap begins with this number.
    end: Option<u64>,
}

impl Footprint {
    /// Returns the footprint of dimensions `(extent, stride in bytes)`.
    pub fn new(base: u64, unit: u64, dims: [(u64, u64); 4]) -> Self {
        let span = dims.iter().try_fold(unit, |sum, &(extent, stride)| {
            sum.checked_add(extent.checked_sub(1)?.checked_mul(stride)?)
        });
        Footprint { base, unit, dims, end: span.and_then(|span| base.checked_add(span)) }
    }

    /// Returns the number of bytes from the first byte to one past the last, or `None` if the last byte is
    /// beyond 64 bits.
    pub fn span(&self) -> Option<u64> {
        self.end.map(|end| end - self.base)
    }

    /// Returns whether two indices may name one byte. If every stride is at least the span of all dimensions
    /// with smaller strides, the answer is exact. Otherwise the function may return true for indices that
    /// share no byte. Slices and transpositions of a contiguous buffer always have such strides. Other
    /// layouts count as overlapping.
    pub fn overlaps_itself(&self) -> bool {
        let mut dims = self.dims;
        dims.sort_unstable_by_key(|&(_, stride)| stride);
        let mut span = Some(self.unit);
        dims.iter().filter(|(extent, _)| *extent > 1).any(|&(extent, stride)| {
            let overlaps = span.is_none_or(|span| stride < span);
            span = span.and_then(|span| span.checked_add((extent - 1).checked_mul(stride)?));
            overlaps
        })
    }

    /// Returns whether `self` and `other` share a byte. Slices, transpositions and parts of packed buffers
    /// take few steps of a search. If a search takes more than [`MOST_STEPS`], the views count as
    /// overlapping.
    #[inline]
    pub fn overlaps(&self, other: &Footprint) -> bool {
        let (Some(end), Some(other_end)) = (self.end, other.end) else { return true };
        end > other.base && other_end > self.base && self.shares_bytes(other)
    }

    /// Returns whether views whose ranges of bytes overlap share a byte.
    fn shares_bytes(&self, other: &Footprint) -> bool {
        // A byte of element `i` of `self` is one of element `j` of `other` if `base + i * strides` and the
        // other's `base + j * strides` differ by less than an element. Dimensions of equal strides are one
        // dimension of `i - j`.
        let (mine, theirs) = (self.rows(), other.rows());
        let mut dims = [Dim::default(); 8];
        let signed = mine.dims.map(|dim| (dim, false)).into_iter().chain(theirs.dims.map(|dim| (dim, true)));
        for ((extent, stride), is_other) in signed.filter(|((extent, stride), _)| *extent > 1 && *stride > 0)
        {
            let Some(dim) = dims.iter_mut().find(|dim| [0, stride].contains(&dim.stride)) else {
                return true;
            };
            dim.stride = stride;
            let indices = if is_other { &mut dim.least } else { &mut dim.most };
            *indices += if is_other { -i128::from(extent - 1) } else { i128::from(extent - 1) };
        }
        dims.sort_unstable_by_key(|dim| std::cmp::Reverse(dim.stride));
        let between = i128::from(other.base) - i128::from(self.base);
        let wanted = [between - i128::from(mine.unit) + 1, between + i128::from(theirs.unit) - 1];
        reaches(&dims, wanted, &mut MOST_STEPS.clone())
    }

    /// Returns the footprint with its contiguous dimensions as one element: a row, or more.
    fn rows(&self) -> Footprint {
        let mut rows = *self;
        rows.dims.sort_unstable_by_key(|&(_, stride)| stride);
        for (extent, stride) in &mut rows.dims {
            if *stride == rows.unit {
                // The span of the view has no overflow.
                (rows.unit, *extent) = (rows.unit * *extent, 1);
            }
        }
        rows
    }
}

/// Most steps of a search for a common byte.
const MOST_STEPS: u32 = 10_000;

/// A dimension of differences of indices: `least..=most` of them, a stride of bytes apart.
#[derive(Clone, Copy, Default)]
struct Dim {
    stride: u64,
    least: i128,
    most: i128,
}

impl Dim {
    fn bounds(&self) -> [i128; 2] {
        [self.least * i128::from(self.stride), self.most * i128::from(self.stride)]
    }
}

/// Returns whether a sum of one multiple per dimension is among `wanted`, or `steps` do not suffice to tell.
fn reaches(dims: &[Dim], [low, high]: [i128; 2], steps: &mut u32) -> bool {
    let Some((dim, smaller)) = dims.split_first().filter(|(dim, _)| dim.stride > 0) else {
        return low <= 0 && 0 <= high;
    };
    let [least, most] = smaller.iter().map(Dim::bounds).fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    let stride = i128::from(dim.stride);
    let first = (low - most + stride - 1).div_euclid(stride).max(dim.least);
    let last = (high - least).div_euclid(stride).min(dim.most);
    (first..=last).any(|index| {
        let Some(left) = steps.checked_sub(1) else { return true };
        *steps = left;
        reaches(smaller, [low - index * stride, high - index * stride], steps)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn bytes(f: &Footprint) -> Vec<u64> {
        let mut all = vec![];
        let [a, b, c, d] = f.dims;
        for i in 0..a.0 {
            for j in 0..b.0 {
                for k in 0..c.0 {
                    for l in 0..d.0 {
                        let start = f.base + i * a.1 + j * b.1 + k * c.1 + l * d.1;
                        all.extend(start..start + f.unit);
                    }
                }
            }
        }
        all
    }

    fn footprint(base: u64, dims: [(u64, u64); 4]) -> Footprint {
        Footprint::new(base, 2, dims)
    }

    proptest::proptest! {
        /// Two views of few elements overlap exactly if they share a byte, and no view that overlaps itself
        /// counts as one that does not.
        #[test]
        fn views_overlap_where_they_share_a_byte(
            bases in (0u64..200, 0u64..200),
            a in proptest::array::uniform4((1u64..4, 0u64..40)),
            b in proptest::array::uniform4((1u64..4, 0u64..40)),
        ) {
            let (a, b) = (footprint(bases.0, a), footprint(bases.1, b));
            let (bytes_a, bytes_b) = (bytes(&a), bytes(&b));
            let distinct: HashSet<_> = bytes_a.iter().copied().collect();
            proptest::prop_assert!(a.overlaps_itself() || distinct.len() == bytes_a.len());
            proptest::prop_assert_eq!(a.overlaps(&b), bytes_b.iter().any(|x| distinct.contains(x)));
            proptest::prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            proptest::prop_assert_eq!(a.span(), bytes_a.iter().max().map(|last| last + 1 - bases.0));
        }

        /// Parts of a packed buffer `[batch][seqlen][parts][head_dim]` count as disjoint, and no part
        /// overlaps itself.
        #[test]
        fn knows_packed_parts_to_be_disjoint(
            b in 1u64..4, s in 1u64..4, parts in proptest::array::uniform2(1u64..4), d in 1u64..5,
        ) {
            let row = (parts[0] + parts[1]) * d * 2;
            let part = |first: u64, heads: u64| {
                footprint(first * d * 2, [(b, s * row), (s, row), (heads, d * 2), (d, 2)])
            };
            let (x, y) = (part(0, parts[0]), part(parts[0], parts[1]));
            proptest::prop_assert!(!x.overlaps(&y) && !x.overlaps_itself() && !y.overlaps_itself());
        }
    }
}
