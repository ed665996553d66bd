//! Scores: numbers that kernels add to the score of a query and a key, and functions of the score.
use core::f32::consts::LOG2_E;
use kernels_gpu::prelude::*;

/// A learned bias per head and distance (T5, Raffel et al., 2020). Each distance has its own value.
#[derive(Clone, Copy)]
pub struct T5 {
    bias: Integers,
    /// The last distance's bias.
    far: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct T5Params {
    /// The biases, f32 `[head][distance]`.
    pub bias: Integers,
    /// The number of distances of a head. Keys that are farther away get the last distance's bias.
    pub distances: u32,
    pub reserved: u32,
}
no_padding! { T5Params { bias, distances, reserved } }

impl ScoreMarker for T5 {
    type Params = T5Params;
    // The biases train.
    const TABLE: Option<fn(&T5Params) -> Integers> = Some(|params| params.bias);
}

impl ScoreMod for T5 {
    fn load(params: &T5Params, of: &Sequence) -> Self {
        let bias = params.bias.part(of.head * params.distances, params.distances);
        T5 { bias, far: GlobalInts::new(&bias).nearest_f32(u32::MAX) }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        s + GlobalInts::new(&self.bias).nearest_f32((p - k) as u32)
    }
    fn entry(&self, p: i32, k: i32) -> u32 {
        (p - k) as u32
    }
    // A block in which every key is farther away than the table reaches has one bias.
    const BLOCK_BIAS: bool = true;
    fn block_bias(&self, p: Range<i32>, k: Range<i32>) -> Option<f32> {
        (p.start - k.end + 2 >= self.bias.count() as i32).then_some(self.far)
    }
}

/// Scores that fall by a slope per key of distance (ALiBi, Press et al., 2022).
#[derive(Clone, Copy)]
pub struct Alibi {
    slope: f32,
    /// The factor of a number that is added to unscaled scores.
    unscale: f32,
}

impl ScoreMarker for Alibi {
    /// The slope of each head, f32.
    type Params = Integers;
    // The slopes train: a table with one entry per head.
    const TABLE: Option<fn(&Integers) -> Integers> = Some(|slopes| *slopes);
}

impl ScoreMod for Alibi {
    // `score` gets the products themselves, which saves a multiplication per score. Instead, `load` divides
    // the slope by the scale once.
    const SCALED: bool = false;
    fn load(slopes: &Integers, of: &Sequence) -> Self {
        let unscale = of.unscale();
        Alibi { slope: GlobalInts::new(slopes).nearest_f32(of.head) * unscale, unscale }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        fma((k - p) as f32, self.slope, s)
    }
    fn entry(&self, _: i32, _: i32) -> u32 {
        0
    }
    fn weight(&self, _: f32, p: i32, k: i32) -> f32 {
        (k - p) as f32 * self.unscale
    }
}

/// `cap * tanh(s / cap)` (Gemma 2).
#[derive(Clone, Copy)]
pub struct Softcap {
    cap: f32,
    /// The factor that converts a score to the exponent of 2 in `tanh`.
    inner: f32,
}

impl ScoreMarker for Softcap {
    /// The cap, and 0.
    type Params = [f32; 2];
}

impl ScoreMod for Softcap {
    // Backward kernels multiply by `gradient`, because the score does not only get another summand.
    const ADDITIVE: bool = false;
    fn load([cap, _]: &[f32; 2], _: &Sequence) -> Self {
        Softcap { cap: *cap, inner: 2.0 * LOG2_E * rcp(*cap) }
    }
    fn score(&self, s: f32, _: i32, _: i32) -> f32 {
        self.tanh(s) * self.cap
    }
    fn gradient(&self, s: f32, _: i32, _: i32) -> f32 {
        let tanh = self.tanh(s);
        1.0 - tanh * tanh
    }
}

impl Softcap {
    fn tanh(&self, s: f32) -> f32 {
        1.0 - 2.0 * rcp(1.0 + ex2(s * self.inner))
    }
}
