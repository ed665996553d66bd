//! Attention variants: a mask with a score modification, in the form that schedules use.
pub mod alibi;
pub mod block_bias;
pub mod block_kind;
pub mod blocks;
pub mod kept;
pub mod mask;
pub mod score;
pub mod softcap;
pub mod staged;
pub mod then;
pub mod tile_mask;
pub mod transposed;

use crate::capped::Capped;
use crate::rows::Sequence;
use crate::sealed::Sealed;
use crate::softmax::finite_logit;
use crate::variant::alibi::Alibi;
use crate::variant::block_bias::BlockBias;
use crate::variant::blocks::At;
use crate::variant::kept::{Kept, LargestScores};
use crate::variant::mask::MaskMod;
use crate::variant::score::ScoreMod;
use crate::variant::softcap::softcap;
use crate::variant::staged::{BiasStages, Staged};
use crate::variant::then::Then;
use crate::variant::tile_mask::{Listed, TileMask};
use attention_tile::BlockList;
use core::f32::consts::LOG2_E;
use core::ops::Range;
use cuda_std::math::fma;
use spec::{BlockSparse, Local, MaskMarker, Maxima, Scored, TmaBias, Window, Windowed};
use tile::mma::{Acc, Unpack};

/// A mask with a score modification. Every [`MaskMod`] is a `MaskFn`; [`Scored`] adds a [`ScoreMod`].
pub trait MaskFn: MaskMarker {
    /// The mask: the keys that queries see.
    type Keys: MaskMod;
    /// The mask of a work tile.
    type Tile: TileMask<Keys = Self::Keys>;
    /// The score modification.
    type Scores: Scores;
    /// The numbers that scores read beside keys.
    type Staged: Staged<Self::Params>;
    /// A Hopper kernel keeps this state of the scores beside the softmax.
    type Kept: Kept<Self::Params>;

    /// Whether intervals of keys may begin after key 0.
    const LEFT: bool = <Self::Keys as MaskMod>::LEFT;
    /// Whether every query sees every key.
    const SEES_ALL: bool = <Self::Keys as MaskMod>::SEES_ALL;
    /// Whether there is an attention sink.
    const SINK: bool = Self::SCORES.sink;

    /// Loads the data of the mask. Kernels call this function before they copy keys.
    fn keys(params: &Self::Params, of: &Sequence) -> Self::Keys;
    /// Loads the mask of a work tile of `tile` queries and keys, and its list of key blocks if there is one.
    fn tile(params: &Self::Params, of: &Sequence, tile: [u32; 2]) -> Self::Tile;
    /// Loads the data of the scores. Kernels call this function while the first copies of keys run.
    fn scores(p: &impl Capped, params: &Self::Params, of: &Sequence) -> Self::Scores;

    /// The natural logit of the sink, below infinity. Minus infinity if there is no sink, or if this work
    /// tile does not count it. Kernels call this function at the end of a work tile, so that the logit takes
    /// no register in the main loop.
    #[inline(always)]
    fn sink(_: &Self::Params, _: &Sequence, _: bool) -> f32 {
        f32::NEG_INFINITY
    }

    /// The keys in the window of the query at position `at`, in a decode kernel. `window.left` applies if
    /// `LEFT`, and `window.right` always. The bounds may be below 0.
    #[inline(always)]
    fn keys_at(window: &Window, at: i32, k_len: u32) -> Range<i32> {
        let start = if Self::LEFT { at - window.left } else { 0 };
        start..at.saturating_add(window.right + 1).min(k_len as i32)
    }
}

/// Modifies a warp's scores before the mask. Each function takes all scores at once, so a kernel tests
/// parameters once per block of keys, not once per score.
pub trait Scores: Copy + Sealed {
    /// Whether the changed scores are scaled products.
    const SCALED: bool = false;
    /// Whether [`Scores::change_one`] changes a score.
    const CHANGES_EACH: bool = false;
    /// Whether scores stay as they are.
    const IS_NONE: bool = false;
    /// Whether [`Scores::of_block`] may return a modification.
    const BLOCK_BIAS: bool = false;
    /// Whether the scores read a table whose gradient kernels can compute. The mask then has no scores.
    const TABLE: bool = false;
    /// Whether the derivative of each changed score by its scaled product is 1.
    const ADDITIVE: bool;
    /// The modification of transposed scores, whose rows are keys and whose columns are queries.
    type Turned: Scores;

    /// Exchanges the roles of queries and keys, for the sequence `of`.
    fn turned(self, of: &Sequence) -> Self::Turned;

    /// Changes the products of a warp's rows and the keys of a block.
    fn change<const W: usize, const N: usize>(self, p: &impl Capped, acc_s: &mut Acc<W, N>, at: At);

    /// [`Scores::change`], for backward kernels. The derivative of a changed score by its scaled product is
    /// the product of what this function returns, if it returns something, and of what [`Scores::through`]
    /// computes of the changed score.
    #[inline(always)]
    fn differentiate<const W: usize, const N: usize>(
        self,
        p: &impl Capped,
        acc_s: &mut Acc<W, N>,
        at: At,
    ) -> Option<Acc<W, N>> {
        self.change(p, acc_s, at);
        None
    }

    /// `x` times the derivative of the changed score `s`, as far as `s` determines it: see
    /// [`Scores::differentiate`]. Backward kernels call this function with `x` = 0 where the mask made `s`
    /// minus infinity.
    #[inline(always)]
    fn through(_: &impl Capped, _s: f32, x: f32) -> f32 {
        x
    }

    /// Changes the product of the query at position `p` and key `k`, in addition to softcap and slopes. Only
    /// decode kernels call this function. In decode kernels, each column is a query of some head, and each
    /// column has its own value of this type.
    #[inline(always)]
    fn change_one(self, s: f32, _p: i32, _k: i32) -> f32 {
        s
    }

    /// The derivative of [`Scores::change_one`] by the scaled product.
    #[inline(always)]
    fn derivative_of_one(self, _s: f32, _p: i32, _k: i32) -> f32 {
        1.0
    }

    /// The entry of a table that the score of position `p` and key `k` reads.
    #[inline(always)]
    fn entry(&self, _p: i32, _k: i32) -> u32 {
        0
    }

    /// The derivative of the changed score of product `s` by its [`Scores::entry`].
    #[inline(always)]
    fn weight(&self, _s: f32, _p: i32, _k: i32) -> f32 {
        0.0
    }

    /// The modification of all products of the queries at positions `p` and the keys `k`, if it is the same
    /// for all of them.
    #[inline(always)]
    fn of_block(&self, _p: Range<i32>, _k: Range<i32>) -> Option<BlockBias> {
        None
    }

    /// Factor that converts changed scores to exponents of 2.
    #[inline(always)]
    fn scale_log2(p: &impl Capped) -> f32 {
        if Self::SCALED { LOG2_E } else { p.scale_log2() }
    }
}

impl Sealed for () {}
impl Sealed for CapAndSlope {}

/// No modification: products stay as they are.
impl Scores for () {
    const IS_NONE: bool = true;
    const ADDITIVE: bool = true;
    type Turned = ();
    #[inline(always)]
    fn turned(self, _: &Sequence) {}
    #[inline(always)]
    fn change<const W: usize, const N: usize>(self, _: &impl Capped, _: &mut Acc<W, N>, _: At) {}
    #[inline(always)]
    fn of_block(&self, _: Range<i32>, _: Range<i32>) -> Option<BlockBias> {
        Some(BlockBias::NONE)
    }
}

/// The modification of [`Local`]: softcap, then slopes, if the parameters request them.
#[derive(Clone, Copy)]
pub struct CapAndSlope(Alibi);

impl Scores for CapAndSlope {
    const ADDITIVE: bool = false;
    type Turned = Self;
    /// A slope's factor is the distance of query and key, in either direction.
    #[inline(always)]
    fn turned(self, _: &Sequence) -> Self {
        self
    }
    #[inline(always)]
    fn change<const W: usize, const N: usize>(self, p: &impl Capped, acc_s: &mut Acc<W, N>, at: At) {
        softcap(acc_s, p.softcap(), p.scale_log2());
        self.0.subtract(acc_s, at);
    }

    /// With softcap, `s` is the hyperbolic tangent. The host refuses softcap together with slopes.
    #[inline(always)]
    fn through(p: &impl Capped, s: f32, x: f32) -> f32 {
        let t = s.max(-1.0);
        if p.softcap() == 0.0 { x } else { fma(-t * t, x, x) }
    }
}

impl<M: MaskMod> MaskFn for M {
    type Keys = M;
    type Tile = M;
    type Scores = ();
    type Staged = ();
    type Kept = ();
    #[inline(always)]
    fn keys(params: &M::Params, of: &Sequence) -> M {
        M::load(params, of)
    }
    #[inline(always)]
    fn tile(params: &M::Params, of: &Sequence, _: [u32; 2]) -> M {
        M::load(params, of)
    }
    #[inline(always)]
    fn scores(_: &impl Capped, _: &M::Params, _: &Sequence) {}
}

impl MaskFn for Local {
    type Keys = Windowed;
    type Tile = Windowed;
    type Scores = CapAndSlope;
    type Staged = ();
    type Kept = ();
    #[inline(always)]
    fn keys(params: &(), of: &Sequence) -> Windowed {
        Windowed::load(params, of)
    }
    #[inline(always)]
    fn tile(params: &(), of: &Sequence, _: [u32; 2]) -> Windowed {
        Windowed::load(params, of)
    }
    #[inline(always)]
    fn scores(p: &impl Capped, _: &(), of: &Sequence) -> CapAndSlope {
        CapAndSlope(Alibi::of(p, of))
    }
}

impl<M: MaskFn> MaskFn for BlockSparse<M> {
    type Keys = M::Keys;
    type Tile = Listed<M::Keys>;
    type Scores = M::Scores;
    type Staged = ();
    type Kept = ();
    const LEFT: bool = M::LEFT;
    /// Blocks that no list has are not seen.
    const SEES_ALL: bool = false;
    const SINK: bool = M::SINK;
    #[inline(always)]
    fn keys(params: &Self::Params, of: &Sequence) -> M::Keys {
        const { assert!(M::STAGED_BYTES == 0, "`TmaBias` must be the outermost type") }
        M::keys(&params.a, of)
    }
    #[inline(always)]
    fn tile(params: &Self::Params, of: &Sequence, tile: [u32; 2]) -> Self::Tile {
        let [tile_m, tile_n] = tile;
        let at = [of.index, of.head, of.tile[0] as u32 / tile_m];
        let list = BlockList::load(&params.b, at, [tile_n, of.keys as u32]);
        Listed::new(M::keys(&params.a, of), list)
    }
    #[inline(always)]
    fn scores(p: &impl Capped, params: &Self::Params, of: &Sequence) -> M::Scores {
        M::scores(p, &params.a, of)
    }
    #[inline(always)]
    fn sink(params: &Self::Params, of: &Sequence, counts: bool) -> f32 {
        M::sink(&params.a, of, counts)
    }
}

impl<M: MaskFn, S: ScoreMod> MaskFn for Scored<M, S> {
    type Keys = M::Keys;
    type Tile = M::Tile;
    type Scores = Then<M::Scores, S>;
    type Staged = ();
    type Kept = ();
    const SEES_ALL: bool = M::SEES_ALL;
    #[inline(always)]
    fn keys(params: &Self::Params, of: &Sequence) -> M::Keys {
        const {
            assert!(M::STAGED_BYTES == 0, "`TmaBias` must be the outermost type");
            assert!(
                S::SINK.is_some() == S::KINDS.sink,
                "`ScoreMod::SINK` is a function exactly if `ScoreMarker::KINDS` has a sink"
            );
        }
        M::keys(&params.a, of)
    }
    #[inline(always)]
    fn tile(params: &Self::Params, of: &Sequence, tile: [u32; 2]) -> M::Tile {
        M::tile(&params.a, of, tile)
    }
    #[inline(always)]
    fn scores(p: &impl Capped, params: &Self::Params, of: &Sequence) -> Self::Scores {
        let then = if S::CHANGES { Some(S::load(&params.b, of)) } else { None };
        Then::new(M::scores(p, &params.a, of), then, of)
    }
    #[inline(always)]
    fn sink(params: &Self::Params, of: &Sequence, counts: bool) -> f32 {
        const { assert!(!(M::SINK && S::KINDS.sink), "scores have two sinks: one is supported") }
        match (M::SINK, S::SINK) {
            (true, _) => M::sink(&params.a, of, counts),
            (_, Some(sink)) if counts => finite_logit(sink(&S::load(&params.b, of))),
            _ => f32::NEG_INFINITY,
        }
    }
}

impl<M: MaskFn> MaskFn for Maxima<M> {
    type Keys = M::Keys;
    type Tile = M::Tile;
    type Scores = M::Scores;
    type Staged = ();
    type Kept = LargestScores;
    const LEFT: bool = M::LEFT;
    const SEES_ALL: bool = M::SEES_ALL;
    const SINK: bool = M::SINK;
    #[inline(always)]
    fn keys(params: &Self::Params, of: &Sequence) -> M::Keys {
        M::keys(&params.a, of)
    }
    #[inline(always)]
    fn tile(params: &Self::Params, of: &Sequence, tile: [u32; 2]) -> M::Tile {
        M::tile(&params.a, of, tile)
    }
    #[inline(always)]
    fn scores(p: &impl Capped, params: &Self::Params, of: &Sequence) -> M::Scores {
        M::scores(p, &params.a, of)
    }
    #[inline(always)]
    fn sink(params: &Self::Params, of: &Sequence, counts: bool) -> f32 {
        M::sink(&params.a, of, counts)
    }
}

/// The bias is no [`Scores`]: the stages carry the bias.
impl<M: MaskFn, T: Unpack> MaskFn for TmaBias<M, T> {
    type Keys = M::Keys;
    type Tile = M::Tile;
    type Scores = M::Scores;
    type Staged = BiasStages<T>;
    type Kept = ();
    const SEES_ALL: bool = M::SEES_ALL;
    #[inline(always)]
    fn keys(params: &Self::Params, of: &Sequence) -> M::Keys {
        const { assert!(M::STAGED_BYTES == 0, "scores have two biases: one is supported") }
        M::keys(&params.b, of)
    }
    #[inline(always)]
    fn tile(params: &Self::Params, of: &Sequence, tile: [u32; 2]) -> M::Tile {
        M::tile(&params.b, of, tile)
    }
    #[inline(always)]
    fn scores(p: &impl Capped, params: &Self::Params, of: &Sequence) -> M::Scores {
        M::scores(p, &params.b, of)
    }
    #[inline(always)]
    fn sink(params: &Self::Params, of: &Sequence, counts: bool) -> f32 {
        M::sink(&params.b, of, counts)
    }
}
