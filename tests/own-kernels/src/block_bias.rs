//! A bias per head and distance (T5), with and without one bias for blocks that are far away.
use crate::Small;
use kernels_gpu::prelude::*;

/// A bias per head and distance. Keys that are farther away, and keys behind the query, have the last
/// distance's bias. `BLOCKS` is 0: without a bias for blocks; 1: with one; 2: with one, also for blocks of
/// which only some keys are far away, which is an error.
#[derive(Clone, Copy)]
pub struct Distance<const BLOCKS: u8, const SCALED: bool> {
    bias: Integers,
    far: f32,
    factor: f32,
}

/// Parameters of [`Distance`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DistanceParams {
    /// f32 `[head][distances]`.
    pub bias: Integers,
    /// Number of distances.
    pub distances: u32,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { DistanceParams { bias, distances, reserved } }

impl<const BLOCKS: u8, const SCALED: bool> ScoreMarker for Distance<BLOCKS, SCALED> {
    type Params = DistanceParams;
}

impl<const BLOCKS: u8, const SCALED: bool> ScoreMod for Distance<BLOCKS, SCALED> {
    const SCALED: bool = SCALED;
    const BLOCK_BIAS: bool = BLOCKS > 0;
    fn load(params: &DistanceParams, of: &Sequence) -> Self {
        let bias = params.bias.part(of.head * params.distances, params.distances);
        let factor = if SCALED { 1.0 } else { of.unscale() };
        Distance { bias, far: GlobalInts::new(&bias).nearest_f32(u32::MAX) * factor, factor }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        fma(GlobalInts::new(&self.bias).nearest_f32((p - k) as u32), self.factor, s)
    }
    fn block_bias(&self, p: Range<i32>, k: Range<i32>) -> Option<f32> {
        let nearest = if BLOCKS == 2 { p.end - k.start } else { p.start - k.end + 2 };
        (nearest >= self.bias.count() as i32 || k.start >= p.end).then_some(self.far)
    }
}

/// Two biases, of which one has a sink beside it.
pub type Twice = Scored<Scored<Full, Distance<1, false>>, (Sink, Distance<1, true>)>;

entry!(distance: With<Small<Scored<Causal, Distance<0, true>>>>);
entry!(distance_blocks: With<Small<Scored<Causal, Distance<1, true>>>>);
entry!(distance_blocks_wrong: With<Small<Scored<Causal, Distance<2, true>>>>);
entry!(distance_twice: With<Small<Twice>>);
