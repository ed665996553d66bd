//! Score modifications: FlexAttention's `score_mod` (Dong et al., 2024), compiled ahead of time.
use crate::rows::Sequence;
use crate::variant::blocks::At;
use attention_tile::{load_bias, load_per_head};
use core::ops::Range;
use cuda_std::math::{fma, unpack_bf16, unpack_f16};
use spec::{
    And, Bf16, Bias, BiasParams, CausalAlibi, Element, F16, F32, PerHead, ScoreMarker, Sink, SinkParams,
};
use tile::mma::{Acc, RowBounds};

/// A modification of scores. A kernel loads a value of this type for a work tile.
///
/// As with [`crate::variant::mask::MaskMod`], selects are faster than branches.
pub trait ScoreMod: ScoreMarker {
    /// Whether [`ScoreMod::score`] changes a score. If this constant is false, no kernel calls that function.
    const CHANGES: bool = true;
    /// Whether [`ScoreMod::score`] receives scaled products of queries and keys, which costs one
    /// multiplication per score. If this constant is false, the function receives unscaled products, and the
    /// kernel scales the result. Then multiply a number by [`Sequence::unscale`] before you add it to a
    /// score.
    const SCALED: bool = true;
    /// Whether [`ScoreMod::block_bias`] may return a number. If this constant is false, no kernel calls that
    /// function.
    const BLOCK_BIAS: bool = false;
    /// Whether [`ScoreMod::score`] adds a number that does not depend on the score, so that the derivative of
    /// the changed score by the score is 1. If this constant is false, backward kernels call
    /// [`ScoreMod::gradient`], for which they need registers.
    const ADDITIVE: bool = true;
    /// The function that returns the natural logit of an attention sink. A sink belongs to a sequence and a
    /// head: it is one more key with value 0, which all their queries see. [`ScoreMarker::KINDS`] has a sink
    /// exactly if this function exists; otherwise the kernel does not compile.
    const SINK: Option<fn(&Self) -> f32> = None;

    /// Loads the data that the scores need for a sequence and a head.
    fn load(params: &Self::Params, of: &Sequence) -> Self;

    /// The modified score of the query at position `p` and key `k`, whose score is `s`. Kernels also call
    /// this function for queries and keys behind the last ones, and ignore the result.
    #[inline(always)]
    fn score(&self, s: f32, _p: i32, _k: i32) -> f32 {
        s
    }

    /// The derivative of [`ScoreMod::score`] by `s`, for the same arguments. Backward kernels multiply the
    /// gradient of the changed score by it. If [`ScoreMod::ADDITIVE`] is true, no kernel calls this function.
    /// If the constant is false and this function is missing, backward kernels do not compile.
    #[inline(always)]
    fn gradient(&self, _s: f32, _p: i32, _k: i32) -> f32 {
        const {
            assert!(
                Self::ADDITIVE,
                "backward kernels need the derivative of scores that are not additive: write \
                 `ScoreMod::gradient`"
            )
        }
        1.0
    }

    /// The entry of the head's part of the table ([`ScoreMarker::TABLE`]) that [`ScoreMod::score`] reads for
    /// the same arguments. As in `GlobalInts::nearest`, an entry behind the last one is the last one. Kernels
    /// that train the table call this function, and do not compile without it.
    #[inline(always)]
    fn entry(&self, _p: i32, _k: i32) -> u32 {
        const { assert!(Self::TABLE.is_none(), "a `TABLE` trains by `ScoreMod::entry`: write the function") }
        0
    }

    /// The derivative of [`ScoreMod::score`] by the entry that it reads, for the same arguments.
    #[inline(always)]
    fn weight(&self, _s: f32, _p: i32, _k: i32) -> f32 {
        1.0
    }

    /// The number that [`ScoreMod::score`] adds to every score of the queries at positions `p` and the keys
    /// `k`; `None` if it changes some of these scores in another way. If a block has such a number, the
    /// kernel adds it once per row and does not call `score`. Only kernels of the sequential schedule
    /// ([`spec::Fwd`], [`spec::FwdSpecialised`], [`spec::FwdDequant`]) call this function, once per warp and
    /// key block.
    #[inline(always)]
    fn block_bias(&self, _p: Range<i32>, _k: Range<i32>) -> Option<f32> {
        None
    }

    /// Changes a warp's scores. `scale` turns them into scaled products, if [`ScoreMod::SCALED`] asks for
    /// these and they are none yet.
    #[doc(hidden)]
    #[inline(always)]
    fn change<const W: usize, const N: usize>(&self, acc_s: &mut Acc<W, N>, scale: Option<f32>, at: At) {
        acc_s.map_at(at.first(), at.warp, |s, p, k| {
            let s = if let Some(scale) = scale { s * scale } else { s };
            self.score(s, p, k)
        });
    }
}

impl ScoreMod for Sink {
    const CHANGES: bool = false;
    const SINK: Option<fn(&Self) -> f32> = Some(logit);
    #[inline(always)]
    fn load(p: &SinkParams, of: &Sequence) -> Self {
        Sink { logit: load_per_head(&p.logits(), of.at) }
    }
}

#[inline(always)]
fn logit(sink: &Sink) -> f32 {
    sink.logit
}

impl ScoreMod for CausalAlibi {
    const SCALED: bool = false;
    #[inline(always)]
    fn load(slopes: &PerHead, of: &Sequence) -> Self {
        CausalAlibi { slope: load_per_head(slopes, of.at) * of.unscale() }
    }
    #[inline(always)]
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        fma((k - p) as f32, self.slope, s)
    }
    /// Computes distances as floats, because a conversion per score would take as long as an exponential.
    #[inline(always)]
    fn change<const W: usize, const N: usize>(&self, acc_s: &mut Acc<W, N>, _: Option<f32>, at: At) {
        let [position, key] = at.first();
        let queries = RowBounds::new(|row| position + row as i32 - key, at.warp);
        acc_s.map_distances(&queries, |s, distance| fma(distance, -self.slope, s));
    }
}

/// An element type of biases.
pub trait BiasElement: Element {
    /// Number of elements in a 32-bit word.
    const PER_WORD: u32 = 4 / Self::BYTES as u32;
    /// Element `i` of a word.
    fn element(word: u32, i: u32) -> f32;
}
impl BiasElement for F32 {
    #[inline(always)]
    fn element(word: u32, _: u32) -> f32 {
        f32::from_bits(word)
    }
}
impl BiasElement for F16 {
    #[inline(always)]
    fn element(word: u32, i: u32) -> f32 {
        let [lo, hi] = unpack_f16(word);
        if i == 0 { lo } else { hi }
    }
}
impl BiasElement for Bf16 {
    #[inline(always)]
    fn element(word: u32, i: u32) -> f32 {
        let [lo, hi] = unpack_bf16(word);
        if i == 0 { lo } else { hi }
    }
}

impl<T: BiasElement> ScoreMod for Bias<T> {
    const SCALED: bool = false;
    #[inline(always)]
    fn load(p: &BiasParams, of: &Sequence) -> Self {
        let bias = Bias::of(p, of.at, of.shift, T::PER_WORD);
        bias.times(of.unscale())
    }
    #[inline(always)]
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        let word = load_bias(self, p, k as u32, T::PER_WORD);
        fma(T::element(word, k as u32 % T::PER_WORD), self.factor(), s)
    }
}

/// Applies both modifications, `A` before `B`. Only one of them may have a sink: two sinks equal one sink
/// with the sum of both weights.
impl<A: ScoreMod, B: ScoreMod> ScoreMod for (A, B) {
    const CHANGES: bool = A::CHANGES || B::CHANGES;
    const SCALED: bool = {
        let mixed = A::CHANGES && B::CHANGES && A::SCALED != B::SCALED;
        assert!(!mixed, "one of the scores takes scaled products (`SCALED`) and the other does not");
        if A::CHANGES { A::SCALED } else { B::SCALED }
    };
    const ADDITIVE: bool = is_additive::<A>() && is_additive::<B>();
    const BLOCK_BIAS: bool =
        Self::CHANGES && (A::BLOCK_BIAS || !A::CHANGES) && (B::BLOCK_BIAS || !B::CHANGES);
    const SINK: Option<fn(&Self) -> f32> = match (A::SINK, B::SINK) {
        (None, None) => None,
        _ => Some(sink_of_two),
    };
    #[inline(always)]
    fn load(And { a, b }: &Self::Params, of: &Sequence) -> Self {
        const { assert!(!(A::KINDS.sink && B::KINDS.sink), "scores have two sinks: one is supported") }
        (A::load(a, of), B::load(b, of))
    }
    #[inline(always)]
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        self.1.score(self.0.score(s, p, k), p, k)
    }
    #[inline(always)]
    fn gradient(&self, s: f32, p: i32, k: i32) -> f32 {
        derivative(&self.0, s, p, k) * derivative(&self.1, self.0.score(s, p, k), p, k)
    }
    #[inline(always)]
    fn entry(&self, p: i32, k: i32) -> u32 {
        if A::TABLE.is_some() { self.0.entry(p, k) } else { self.1.entry(p, k) }
    }
    #[inline(always)]
    fn weight(&self, s: f32, p: i32, k: i32) -> f32 {
        let before = self.0.score(s, p, k);
        match A::TABLE {
            Some(_) => self.0.weight(s, p, k) * derivative(&self.1, before, p, k),
            None => self.1.weight(before, p, k),
        }
    }
    #[inline(always)]
    fn block_bias(&self, p: Range<i32>, k: Range<i32>) -> Option<f32> {
        let a = if A::CHANGES { self.0.block_bias(p.clone(), k.clone())? } else { 0.0 };
        Some(if B::CHANGES { a + self.1.block_bias(p, k)? } else { a })
    }
}

/// Whether the derivative of the changed scores is 1.
pub const fn is_additive<S: ScoreMod>() -> bool {
    S::ADDITIVE || !S::CHANGES
}

/// The derivative of the changed score, by the score `s`.
#[inline(always)]
pub fn derivative<S: ScoreMod>(scores: &S, s: f32, p: i32, k: i32) -> f32 {
    if const { is_additive::<S>() } { 1.0 } else { scores.gradient(s, p, k) }
}

#[inline(always)]
fn sink_of_two<A: ScoreMod, B: ScoreMod>((a, b): &(A, B)) -> f32 {
    match (A::SINK, B::SINK) {
        (Some(sink), _) => sink(a),
        (None, Some(sink)) => sink(b),
        (None, None) => f32::NEG_INFINITY,
    }
}
