//! Masks and scores on the host: a kernel's own functions for one query and one key, and attention in f64
//! with these functions. Tests compare kernels with this attention.
//!
//! The functions run in f32, as on the device. Where they load from device memory, they read copies
//! ([`with_memory`]). Softcap and slopes of a request are not functions of a mask, so this file does not
//! apply them.
mod block_mask;
mod rules;

pub use crate::rows::Sequence;
pub use crate::variant::MaskFn;
pub use crate::variant::block_kind::BlockKind;
pub use block_mask::{BlockLists, TileLists, create_block_mask};
pub use cuda_std::host::{Copied, with_memory};
pub use rules::{Broken, broken};

use crate::capped::Uncapped;
use crate::variant::Scores;
use crate::variant::mask::MaskMod;
use core::f32::consts::LOG2_E;
use core::ops::Range;
use spec::{Head, Window};

/// A sequence and a query head, as a kernel's masks and scores see them. The last query has the position of
/// the last key (bottom-right alignment); `scale` is the factor from products of queries and keys to scores.
pub fn sequence(index: u32, head: u32, [queries, keys]: [u32; 2], scale: f32) -> Sequence {
    let [queries, keys] = [queries, keys].map(|length| length as i32);
    Sequence {
        index,
        head,
        queries,
        keys,
        shift: keys - queries,
        window: [Window::UNBOUNDED; 2],
        tile: [0, queries - 1],
        scale_log2: scale * LOG2_E,
        at: Head::on_host(index, head),
    }
}

impl Sequence {
    /// Query head `head` of the sequence.
    pub(crate) fn with_head(self, head: u32) -> Self {
        Sequence { head, at: Head::on_host(self.index, head), ..self }
    }
}

/// The score of the query at position `p` and key `k`, given the product of both. Returns minus infinity if
/// the query does not see the key.
pub fn score<M: MaskFn>(params: &M::Params, of: &Sequence, product: f32, p: i32, k: i32) -> f32 {
    let mask = M::keys(params, of);
    let Range { start, end } = mask.keys(p);
    let start = if M::LEFT { start } else { 0 };
    // A kernel does not call `sees` for keys in `whole`. This function does. If `whole` is wrong, the result
    // therefore differs from the kernel's result.
    let is_hole = || M::Keys::HOLES && !mask.sees(p, k);
    if !(start..end.min(of.keys)).contains(&k) || is_hole() {
        return f32::NEG_INFINITY;
    }
    let changed = M::scores(&Uncapped, params, of).change_one(product, p, k);
    if M::Scores::SCALED { changed } else { changed * of.scale() }
}

/// The derivative of [`score`] by the scaled product, if the query sees the key.
pub fn gradient<M: MaskFn>(params: &M::Params, of: &Sequence, product: f32, p: i32, k: i32) -> f32 {
    M::scores(&Uncapped, params, of).derivative_of_one(product, p, k)
}

/// The entry of the head's part of a table that [`score`] reads, and the derivative of the score by it, for
/// a query that sees the key. Returns `None` without a table that trains.
pub fn entry<M: MaskFn>(
    params: &M::Params,
    of: &Sequence,
    product: f32,
    p: i32,
    k: i32,
) -> Option<(u32, f32)> {
    let scores = M::scores(&Uncapped, params, of);
    M::Scores::TABLE.then(|| (scores.entry(p, k), scores.weight(product, p, k)))
}

/// Attention of the query at position `p`: writes the query's row of O, and returns the LSE. `product`
/// returns the product of the query and a key; `value` returns a column of a key's value. Without a key, O is
/// 0 and the LSE is minus infinity. A sink changes O and the LSE.
pub fn attend<M: MaskFn>(
    params: &M::Params,
    of: &Sequence,
    p: i32,
    product: impl Fn(i32) -> f64,
    value: impl Fn(i32, usize) -> f64,
    o: &mut [f64],
) -> f64 {
    let score = |k| f64::from(score::<M>(params, of, product(k) as f32, p, k));
    let sink = f64::from(M::sink(params, of, true));
    let most = (0..of.keys).map(score).fold(sink, f64::max);
    o.fill(0.0);
    if most == f64::NEG_INFINITY && (0..of.keys).all(|k| !score(k).is_nan()) {
        return most;
    }
    let mut sum = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - most).exp() };
    for k in 0..of.keys {
        let weight = (score(k) - most).exp();
        sum += weight;
        o.iter_mut().enumerate().for_each(|(column, o)| *o += weight * value(k, column));
    }
    o.iter_mut().for_each(|o| *o /= sum);
    most + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::host::Copied;
    use spec::{And, Causal, Chunked, ChunkedParams, FastDiv, Full, Scored, Sink, SinkParams};
    use std::vec;

    #[test]
    fn scores_are_those_of_the_mask() {
        let of = sequence(0, 1, [2, 6], 0.5);
        let seen = |score: f32| score != f32::NEG_INFINITY;
        // The first of the two queries has the position of key 4.
        let causal = |k| score::<Causal>(&(), &of, 3.0, of.shift, k);
        assert_eq!([causal(0), causal(4)], [1.5; 2]);
        assert!(!seen(causal(5)) && !seen(causal(-1)));
        let params = ChunkedParams { chunk: FastDiv::new(4).expect("a divisor"), reserved: 0 };
        let chunked = [2, 3, 4, 5].map(|k| seen(score::<Chunked>(&params, &of, 3.0, 5, k)));
        assert_eq!(chunked, [false, false, true, true]);
    }

    #[test]
    fn a_sink_is_one_more_key() {
        let copies = vec![Copied { address: 64, bytes: vec![0; 8] }];
        let params = And::new((), SinkParams { base: 64 });
        let mut o = [0.0; 1];
        let of = sequence(0, 1, [1, 1], 1.0);
        let lse = with_memory(copies, || {
            attend::<Scored<Full, Sink>>(&params, &of, 0, |_| 0.0, |_, _| 6.0, &mut o)
        });
        assert_eq!((o, lse), ([3.0], 2f64.ln()));
        let none = sequence(0, 0, [1, 0], 1.0);
        assert_eq!(attend::<Full>(&(), &none, 0, |_| 0.0, |_, _| 6.0, &mut o), f64::NEG_INFINITY);
        assert_eq!(o, [0.0]);
    }
}
