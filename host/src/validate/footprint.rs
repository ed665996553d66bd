//! Footprints: the bytes of a view, and whether two views overlap.

/// The bytes of a view: `base + sum(index * stride) + 0..unit`, each index below its extent. Strides are in
/// bytes, and no stride is negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    pub base: u64,
    /// The number of bytes of one element.
    pub unit: u64,
    /// Dimensions: `(extent, stride in bytes)`.
    pub dims: [(u64, u64); 4],
}

impl Footprint {
    /// Returns the number of bytes from the first byte to one past the last, or `None` above 2^64.
    pub fn span(&self) -> Option<u64> {
        self.dims.iter().try_fold(self.unit, |sum, &(extent, stride)| {
            sum.checked_add(extent.checked_sub(1)?.checked_mul(stride)?)
        })
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

    /// Returns false only if `self` and `other` provably share no byte. Two views share no byte if their
    /// ranges lie apart. Two views also share no byte if they interleave like the parts of one packed buffer:
    /// with a period that divides all larger strides of both views.
    pub fn overlaps(&self, other: &Footprint) -> bool {
        let (Some(span), Some(other_span)) = (self.span(), other.span()) else { return true };
        let apart = |a: u64, span: u64, b: u64| a.checked_add(span).is_some_and(|end| end <= b);
        if apart(self.base, span, other.base) || apart(other.base, other_span, self.base) {
            return false;
        }
        let cuts = self.dims.iter().chain(&other.dims).filter(|(extent, _)| *extent > 1);
        !cuts.into_iter().any(|&(_, cut)| self.interleaves(other, cut))
    }

    /// Treats strides of `cut` bytes and more as one lattice of period `p`. Returns whether the parts within
    /// a period are disjoint.
    fn interleaves(&self, other: &Footprint, cut: u64) -> bool {
        let (Some((inner, period)), Some((other_inner, other_period))) = (self.split(cut), other.split(cut))
        else {
            return false;
        };
        let p = gcd(period, other_period);
        if p == 0 {
            return false;
        }
        let ahead = (i128::from(other.base) - i128::from(self.base)).rem_euclid(i128::from(p)) as u64;
        let behind = if ahead == 0 { 0 } else { p - ahead };
        ahead >= inner && behind >= other_inner
    }

    /// Returns the span of the dimensions with strides below `cut`, and the greatest common divisor of the
    /// other strides.
    fn split(&self, cut: u64) -> Option<(u64, u64)> {
        self.dims.iter().filter(|(extent, _)| *extent > 1).try_fold(
            (self.unit, 0),
            |(inner, period), &(extent, stride)| {
                if stride < cut {
                    Some((inner.checked_add((extent - 1).checked_mul(stride)?)?, period))
                } else {
                    Some((inner, gcd(period, stride)))
                }
            },
        )
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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
        Footprint { base, unit: 2, dims }
    }

    proptest::proptest! {
        /// Views that count as disjoint are disjoint, byte by byte.
        #[test]
        fn never_calls_overlapping_bytes_disjoint(
            bases in (0u64..200, 0u64..200),
            a in proptest::array::uniform4((1u64..4, 0u64..40)),
            b in proptest::array::uniform4((1u64..4, 0u64..40)),
        ) {
            let (a, b) = (footprint(bases.0, a), footprint(bases.1, b));
            let (bytes_a, bytes_b) = (bytes(&a), bytes(&b));
            let distinct: HashSet<_> = bytes_a.iter().copied().collect();
            proptest::prop_assert!(a.overlaps_itself() || distinct.len() == bytes_a.len());
            proptest::prop_assert!(a.overlaps(&b) || bytes_b.iter().all(|x| !distinct.contains(x)));
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
