//! Kernels of a caller that train a table, with and without errors in the entries that scores name.
use crate::block_bias::{Distance, DistanceParams};
use crate::trained::{DkDv, Dq};
use crate::{OwnSoftcap, OwnSoftcapParams};
use kernels_gpu::prelude::*;

/// A bias per head and distance that trains. `ERROR` is 0: none; 1: scores name the entry of the next
/// distance; 2: the derivative is that of scaled scores.
#[derive(Clone, Copy)]
pub struct Learned<const ERROR: u8> {
    bias: Distance<0, false>,
    unscale: f32,
}

impl<const ERROR: u8> ScoreMarker for Learned<ERROR> {
    type Params = DistanceParams;
    const TABLE: Option<fn(&DistanceParams) -> Integers> = Some(|params| params.bias);
}

impl<const ERROR: u8> ScoreMod for Learned<ERROR> {
    const SCALED: bool = false;
    fn load(params: &DistanceParams, of: &Sequence) -> Self {
        Learned { bias: Distance::load(params, of), unscale: of.unscale() }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        self.bias.score(s, p, k)
    }
    fn entry(&self, p: i32, k: i32) -> u32 {
        (p - k) as u32 + (ERROR == 1) as u32
    }
    fn weight(&self, _: f32, _: i32, _: i32) -> f32 {
        if ERROR == 2 { 1.0 } else { self.unscale }
    }
}

/// The bias stands between two softcaps.
pub type Between<const ERROR: u8> = Scored<Causal, (OwnSoftcap, (Learned<ERROR>, OwnSoftcap))>;
/// The parameters of [`Between`].
pub type BetweenParams = And<(), And<OwnSoftcapParams, And<DistanceParams, OwnSoftcapParams>>>;
/// Gradients of a table: tiles of 32 queries and 32 keys.
pub type Table<Mask> = BwdTable<F16, Mask, 2, 1, 2, 4, 2>;

entry!(learned_dkdv: With<DkDv<Between<0>>>);
entry!(learned_dq: With<Dq<Between<0>>>);
entry!(learned_table: With<Table<Between<0>>>);
entry!(learned_table_wrong: With<Table<Between<2>>>);
