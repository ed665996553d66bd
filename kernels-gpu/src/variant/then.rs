//! Scores in a row: the modification of a mask, and behind it a [`ScoreMod`].
use crate::capped::Capped;
use crate::rows::Sequence;
use crate::sealed::Sealed;
use crate::variant::Scores;
use crate::variant::block_bias::BlockBias;
use crate::variant::blocks::At;
use crate::variant::score::{ScoreMod, derivative, is_additive};
use crate::variant::transposed::Transposed;
use core::ops::Range;
use tile::mma::Acc;

/// The score modification of a mask, followed by a [`ScoreMod`].
#[derive(Clone, Copy)]
pub struct Then<A, S> {
    first: A,
    then: Option<S>,
    scale: f32,
}

impl<A, S> Then<A, S> {
    /// `then` after `first`, for the sequence `of`. Without `then`, scores stay as `first` leaves them.
    #[inline(always)]
    pub(super) fn new(first: A, then: Option<S>, of: &Sequence) -> Self {
        Then { first, then, scale: of.scale() }
    }
}

impl<A: Scores, S: ScoreMod> Sealed for Then<A, S> {}

impl<A: Scores, S: ScoreMod> Scores for Then<A, S> {
    const SCALED: bool = {
        assert!(!(A::SCALED && S::CHANGES && !S::SCALED), "scaled scores precede unscaled scores");
        A::SCALED || S::CHANGES && S::SCALED
    };
    const CHANGES_EACH: bool = A::CHANGES_EACH || S::CHANGES;
    const BLOCK_BIAS: bool = match S::CHANGES {
        true => S::BLOCK_BIAS && (A::IS_NONE || A::BLOCK_BIAS),
        false => A::BLOCK_BIAS,
    };
    const TABLE: bool = A::IS_NONE && S::CHANGES && S::TABLE.is_some();
    const ADDITIVE: bool = A::ADDITIVE && is_additive::<S>();
    type Turned = Then<A::Turned, Transposed<S>>;

    #[inline(always)]
    fn turned(self, of: &Sequence) -> Self::Turned {
        let Then { first, then, scale } = self;
        Then { first: first.turned(of), then: then.map(|then| Transposed::new(then, of)), scale }
    }

    #[inline(always)]
    fn change<const W: usize, const N: usize>(self, p: &impl Capped, acc_s: &mut Acc<W, N>, at: At) {
        let Then { first, then, scale } = self;
        first.change(p, acc_s, at);
        if let Some(then) = then {
            then.change(acc_s, (Self::SCALED && !A::SCALED).then_some(scale), at);
        }
    }

    /// `S` changes the scores of which `A` would compute its derivative, so this function computes both.
    #[inline(always)]
    fn differentiate<const W: usize, const N: usize>(
        self,
        p: &impl Capped,
        acc_s: &mut Acc<W, N>,
        at: At,
    ) -> Option<Acc<W, N>> {
        let Then { first, then, scale } = self;
        let before = first.differentiate(p, acc_s, at);
        let Some(then) = then else { return before };
        let scale = (Self::SCALED && !A::SCALED).then_some(scale);
        let factors = (!Self::ADDITIVE).then(|| {
            let mut factors = *acc_s;
            factors.map_at(at.first(), at.warp, |s, position, k| {
                let of_then = derivative(&then, scale.map_or(s, |scale| s * scale), position, k);
                A::through(p, s, of_then)
            });
            if let Some(before) = before {
                factors.zip(&before, |x, y| x * y);
            }
            factors
        });
        then.change(acc_s, scale, at);
        factors
    }

    #[inline(always)]
    fn of_block(&self, p: Range<i32>, k: Range<i32>) -> Option<BlockBias> {
        let first = self.first.of_block(p.clone(), k.clone())?;
        let Some(then) = self.then else { return Some(first) };
        let by = if Self::SCALED && !A::SCALED { self.scale } else { 1.0 };
        Some(BlockBias { scale: first.scale * by, add: first.add * by + then.block_bias(p, k)? })
    }

    #[inline(always)]
    fn through(p: &impl Capped, s: f32, x: f32) -> f32 {
        if S::CHANGES { x } else { A::through(p, s, x) }
    }

    #[inline(always)]
    fn change_one(self, s: f32, p: i32, k: i32) -> f32 {
        let Then { first, then, scale } = self;
        let s = first.change_one(s, p, k);
        let Some(then) = then else { return s };
        then.score(if Self::SCALED && !A::SCALED { s * scale } else { s }, p, k)
    }

    #[inline(always)]
    fn derivative_of_one(self, s: f32, p: i32, k: i32) -> f32 {
        let Then { first, then, scale } = self;
        let (before, changed) = (first.derivative_of_one(s, p, k), first.change_one(s, p, k));
        let Some(then) = then else { return before };
        before * derivative(&then, if Self::SCALED && !A::SCALED { changed * scale } else { changed }, p, k)
    }
    #[inline(always)]
    fn entry(&self, p: i32, k: i32) -> u32 {
        self.then.map_or(0, |then| then.entry(p, k))
    }

    #[inline(always)]
    fn weight(&self, s: f32, p: i32, k: i32) -> f32 {
        let Then { then, scale, .. } = *self;
        then.map_or(0.0, |then| match Self::SCALED {
            true => then.weight(s * scale, p, k),
            false => then.weight(s, p, k) * scale,
        })
    }
}
