//! Masks: which keys a query sees by definition, and masks for a kernel's test problems.
use ferroflash::kernels::MaskKind;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Index, Mask, MaskBits, Prefix};
use std::ops::Range;

/// Returns the smallest interval that contains every key that a query at `position` sees. [`Mask::Bits`] may
/// hide keys of the interval. `prefix` is the sequence's prefix on the device. This function is the
/// definition; tests compare the planner's arithmetic with it.
pub(super) fn visible(p: &Problem, position: i64, prefix: i32) -> Range<usize> {
    let keys = p.seqlen_k as i64;
    let (first, end) = match p.mask {
        Mask::Full | Mask::Bits(_) => (0, keys),
        Mask::Causal => (0, position + 1),
        Mask::Window { left, right } => (
            left.map_or(0, |left| position - i64::from(left)),
            right.map_or(keys, |right| position + i64::from(right) + 1),
        ),
        Mask::Prefix(Prefix::All(prefix)) => (0, (position + 1).max(prefix.into())),
        Mask::Prefix(Prefix::Each(_)) => (0, (position + 1).max(prefix.into())),
        Mask::Chunked { chunk } if position >= 0 => {
            (position / i64::from(chunk) * i64::from(chunk), position + 1)
        }
        Mask::Chunked { .. } => (0, 0),
        other => unreachable!("the reference does not know mask {other}"),
    };
    let (first, end) = (first.clamp(0, keys), end.clamp(0, keys));
    first as usize..end.max(first) as usize
}

/// Returns whether the mask of a sequence hides a key from every query. The last query has the position of
/// the last key. Bits hide no key here.
pub fn hides(p: &Problem, key: usize) -> bool {
    let first = p.seqlen_k as i64 - p.seqlen_q as i64;
    (0..p.seqlen_q as i64).all(|row| !visible(p, first + row, 0).contains(&key))
}

/// A mask with its alignment and softcap, and whether it has slopes.
pub(super) type Masked = (Mask, Alignment, Option<f32>, bool);

use Alignment::{BottomRight, TopLeft};

/// A mask with one prefix per sequence, in device memory.
const EACH: Mask = Mask::Prefix(Prefix::Each(Index::new(0, 0)));

const fn window(left: Option<u32>, right: Option<u32>) -> Mask {
    Mask::Window { left, right }
}

/// Returns a mask of bits for the last `columns` keys, or for all keys if there are fewer, per head or per
/// sequence.
const fn bits(columns: usize, of_heads: bool) -> Mask {
    let shape = if of_heads { [1, usize::MAX, 0, columns] } else { [usize::MAX, 1, 0, columns] };
    Mask::Bits(MaskBits::contiguous(0, 0, shape))
}

/// Returns masks of a kind, for problems of any size, with softcap and ALiBi slopes if the kind has them.
pub(super) fn several(kind: MaskKind) -> Vec<Masked> {
    let plain = |mask, alignment| (mask, alignment, None, false);
    match kind {
        MaskKind::Full => vec![plain(Mask::Full, BottomRight)],
        MaskKind::Causal => vec![plain(Mask::Causal, BottomRight), plain(Mask::Causal, TopLeft)],
        MaskKind::Local => vec![
            plain(window(Some(64), Some(31)), BottomRight),
            plain(window(Some(100), Some(0)), BottomRight),
            plain(window(None, Some(50)), TopLeft),
            plain(window(Some(0), None), BottomRight),
            (Mask::Causal, BottomRight, Some(15.0), false),
            (Mask::Full, BottomRight, Some(50.0), false),
            (Mask::Causal, BottomRight, None, true),
            (Mask::Full, BottomRight, None, true),
            (window(Some(200), Some(9)), TopLeft, Some(20.0), true),
        ],
        MaskKind::Prefix => vec![
            plain(EACH, BottomRight),
            plain(Mask::Prefix(Prefix::All(33)), BottomRight),
            plain(EACH, TopLeft),
        ],
        MaskKind::Chunked => vec![
            plain(Mask::Chunked { chunk: 64 }, BottomRight),
            plain(Mask::Chunked { chunk: 37 }, TopLeft),
            plain(Mask::Chunked { chunk: 200 }, BottomRight),
        ],
        MaskKind::Bits => vec![
            plain(bits(usize::MAX, false), BottomRight),
            plain(bits(61, true), BottomRight),
            plain(bits(64, false), TopLeft),
        ],
        MaskKind::Own => vec![],
    }
}

/// Returns masks of a kind without softcap and slopes. The masks' edges lie beside the edges of blocks of `n`
/// keys and of tiles of `m` queries.
pub(super) fn at_edges(kind: MaskKind, [m, n]: [usize; 2]) -> Vec<(Mask, Alignment)> {
    let prefix = |keys: usize| Mask::Prefix(Prefix::All(keys as u32));
    let chunked = |keys: usize| Mask::Chunked { chunk: keys as u32 };
    match kind {
        MaskKind::Prefix => vec![
            (prefix(n), BottomRight),
            (EACH, BottomRight),
            (prefix(n + 1), TopLeft),
            (EACH, TopLeft),
            (prefix(2 * n - 1), BottomRight),
        ],
        MaskKind::Chunked => vec![
            (chunked(n), BottomRight),
            (chunked(n - 1), BottomRight),
            (chunked(m + 1), TopLeft),
            (chunked(1), BottomRight),
            (chunked(2 * n + 1), BottomRight),
        ],
        MaskKind::Bits => vec![
            (bits(usize::MAX, true), BottomRight),
            (bits(n, false), BottomRight),
            (bits(n + 1, true), TopLeft),
            (bits(9, false), BottomRight),
            (bits(64, true), BottomRight),
        ],
        other => several(other).into_iter().map(|(mask, alignment, ..)| (mask, alignment)).collect(),
    }
}

/// Returns one mask of a kind, for blocks of `n` keys.
pub fn one(kind: MaskKind, n: usize) -> Mask {
    match kind {
        MaskKind::Local => window(Some(2 * n as u32), Some(n as u32)),
        MaskKind::Chunked => Mask::Chunked { chunk: 2 * n as u32 + 3 },
        other => several(other).first().map_or(Mask::Full, |(mask, ..)| *mask),
    }
}

/// Gives a problem a mask for its sizes: bits for its sequences, heads, queries and keys.
pub fn fit(p: Problem) -> Problem {
    match p.mask {
        Mask::Bits(MaskBits { shape: [batch, heads, _, columns], .. }) => {
            let shape = [batch.min(p.batch), heads.min(p.heads_q), p.seqlen_q, columns.min(p.seqlen_k)];
            p.mask(Mask::Bits(MaskBits::contiguous(0, 0, shape)))
        }
        _ => p,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::exact;
    use crate::{Layout, Memory};
    use ferroflash::DType;

    /// Returns whether query `i` sees key `j`, by the definition for one pair.
    fn sees(memory: &Memory, [b, h, i]: [usize; 3], j: usize) -> bool {
        let (p, extras) = (&memory.problem, &memory.extras);
        let position = match p.alignment {
            TopLeft => i as i64,
            BottomRight => i as i64 + p.seqlen_k as i64 - p.seqlen_q as i64,
            other => panic!("{other:?}"),
        };
        let key = j as i64;
        match p.mask {
            Mask::Full => true,
            Mask::Causal => key <= position,
            Mask::Window { left, right } => {
                left.is_none_or(|left| position - key <= i64::from(left))
                    && right.is_none_or(|right| key - position <= i64::from(right))
            }
            Mask::Prefix(Prefix::All(prefix)) => key <= position || key < i64::from(prefix),
            Mask::Prefix(Prefix::Each(_)) => {
                let prefixes = extras.prefixes.as_ref().expect("a prefix per sequence");
                key <= position || key < i64::from(prefixes[b])
            }
            Mask::Chunked { chunk } => {
                let chunk = i64::from(chunk);
                key <= position && key.div_euclid(chunk) == position.div_euclid(chunk)
            }
            Mask::Bits(_) => extras.bits.as_ref().expect("bits").sees([b, h, i], j, p.seqlen_k),
            other => panic!("{other}"),
        }
    }

    /// Computes O and LSE of a row by the definition of attention.
    fn row(memory: &Memory, [b, h, i]: [usize; 3]) -> (Vec<f64>, f64) {
        let (p, inputs) = (&memory.problem, memory.inputs().expect("valid"));
        let group = p.heads_q / p.heads_k;
        let q: Vec<_> = inputs.q().values(b, i, h).map(f64::from).collect();
        let bias = |j| memory.extras.bias.as_ref().map_or(0.0, |bias| f64::from(bias.of([b, h, i], j)));
        let seen = (0..p.seqlen_k).filter(|j| sees(memory, [b, h, i], *j)).map(|j| {
            let dot: f64 = inputs.k().values(b, j, h / group).zip(&q).map(|(k, q)| f64::from(k) * q).sum();
            (j, (dot * f64::from(p.softmax_scale()) + bias(j)).exp())
        });
        let (mut o, mut sum) = (vec![0.0; p.head_dim_v], 0.0);
        for (j, weight) in seen {
            sum += weight;
            let v = inputs.v().values(b, j, h / group).map(f64::from);
            o.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
        }
        let sink = memory.extras.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[h]).exp());
        let all = sum + sink;
        o.iter_mut().for_each(|o| *o = if sum > 0.0 { *o / all } else { 0.0 });
        (o, all.ln())
    }

    /// The test runs every mask, with sinks and biases of every type, in both alignments, with fewer keys
    /// than queries.
    #[test]
    fn attention_is_what_its_definition_says() {
        let kinds = [MaskKind::Full, MaskKind::Causal, MaskKind::Prefix, MaskKind::Chunked, MaskKind::Bits];
        let biases = [None, Some(DType::F16), Some(DType::Bf16), Some(DType::F32)];
        let mut turn = 0;
        for kind in kinds {
            let masks = at_edges(kind, [5, 4]).into_iter();
            for (mask, alignment) in masks.chain([(window(Some(3), Some(2)), TopLeft)]) {
                for [queries, keys] in [[7, 7], [3, 19], [12, 5]] {
                    turn += 1;
                    let problem = Problem::new(DType::F16, 2, queries, 4, 8).seqlen_k(keys).heads_k(2);
                    let problem = problem.mask(mask).alignment(alignment).sinks(turn % 3 == 0);
                    let problem = fit(problem.bias(biases[turn % 4]));
                    let memory = Memory::random(problem, Layout::Bshd, turn as u64);
                    let got = exact(&memory.inputs().expect("valid"));
                    for at in (0..2 * 4 * queries).map(|n| [n / (4 * queries), n / queries % 4, n % queries])
                    {
                        let ([b, h, i], (o, lse)) = (at, row(&memory, at));
                        let own = &got.out[((b * queries + i) * 4 + h) * 8..][..8];
                        let near = |a: f64, b: f64| a == b || (a - b).abs() < 1e-9;
                        let right = own.iter().zip(&o).all(|(a, b)| near(*a, *b));
                        let own_lse = got.lse[(b * 4 + h) * queries + i];
                        assert!(right && near(own_lse, lse), "{problem}, {at:?}: {own_lse} for {lse}");
                    }
                }
            }
        }
        assert!(turn > 60, "{turn} problems");
    }

    #[test]
    fn bits_name_the_last_keys() {
        let bits = crate::BitsTensor::new([1, 2, 1, 11], vec![0b101, 0b10, 0, 0b100]);
        let seen = |head, keys| (0..keys).filter(|j| bits.sees([5, head, 3], *j, keys)).collect::<Vec<_>>();
        assert_eq!(seen(0, 11), [0, 2, 9]);
        assert_eq!(seen(0, 13), [0, 1, 2, 4, 11]);
        assert_eq!(seen(1, 11), [10]);
        // If there are more columns than keys, the first columns belong to the keys.
        assert_eq!(seen(0, 4), [0, 2]);
    }
}
