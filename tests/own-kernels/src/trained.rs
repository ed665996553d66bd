//! Kernels of a caller that train: several scores in a row, with and without errors in their derivatives.
use crate::{OwnSoftcap, OwnSoftcapParams};
use kernels_gpu::prelude::*;

/// Scores that rise by a number per key. Behind the last query, where kernels ignore scores, they are NaN.
#[derive(Clone, Copy)]
pub struct Tilt {
    rise: f32,
    last: i32,
}

impl ScoreMarker for Tilt {
    /// The number, and 0.
    type Params = [f32; 2];
}

impl ScoreMod for Tilt {
    const SCALED: bool = false;
    fn load([tilt, _]: &[f32; 2], of: &Sequence) -> Self {
        Tilt { rise: tilt * of.unscale(), last: of.queries - 1 + of.shift }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        let distance = if p > self.last { f32::NAN } else { (k - p) as f32 };
        fma(distance, self.rise, s)
    }
}

/// [`OwnSoftcap`], whose derivative is too large by a sixteenth.
#[derive(Clone, Copy)]
pub struct Steep(OwnSoftcap);

impl ScoreMarker for Steep {
    type Params = OwnSoftcapParams;
}

impl ScoreMod for Steep {
    const SCALED: bool = false;
    const ADDITIVE: bool = false;
    fn load(params: &OwnSoftcapParams, of: &Sequence) -> Self {
        Steep(OwnSoftcap::load(params, of))
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        self.0.score(s, p, k)
    }
    fn gradient(&self, s: f32, p: i32, k: i32) -> f32 {
        self.0.gradient(s, p, k) * 1.0625
    }
}

/// [`OwnSoftcap`], which does not say that it is not additive.
#[derive(Clone, Copy)]
pub struct Forgetful(OwnSoftcap);

impl ScoreMarker for Forgetful {
    type Params = OwnSoftcapParams;
}

impl ScoreMod for Forgetful {
    const SCALED: bool = false;
    fn load(params: &OwnSoftcapParams, of: &Sequence) -> Self {
        Forgetful(OwnSoftcap::load(params, of))
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        self.0.score(s, p, k)
    }
}

/// Scores `S`, and behind them two more.
pub type Capped<S> = Scored<Scored<Causal, S>, (Tilt, OwnSoftcap)>;
/// Gradients of keys and values of head dim 64: tiles of 128 keys and 32 queries.
pub type DkDv<Mask> = BwdDkDv<F16, Mask, 8, 1, 2, 1, 4, 4, 4, 2>;
/// Gradients of queries of head dim 64: tiles of 128 queries and 32 keys.
pub type Dq<Mask> = BwdDq<F16, Mask, 8, 1, 2, 4, 0, 2>;

entry!(capped_dkdv: With<DkDv<Capped<OwnSoftcap>>>);
entry!(capped_dq: With<Dq<Capped<OwnSoftcap>>>);
entry!(steep_dkdv: With<DkDv<Capped<Steep>>>);
