//! The first keys and every few keys of a window, with branches and a division that may panic; scores that
//! take roots.
use crate::Small;
use kernels_gpu::prelude::*;

/// A query sees the first keys, and the keys of its window whose distance is a multiple of `step`.
#[derive(Clone, Copy)]
pub struct Strided(StridedParams);

/// Parameters of [`Strided`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StridedParams {
    /// Number of first keys.
    pub first: i32,
    /// Keys of a window.
    pub window: i32,
    /// Distance of two keys in a window.
    pub step: i32,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { StridedParams { first, window, step, reserved } }

impl MaskMarker for Strided {
    type Params = StridedParams;
}

impl MaskMod for Strided {
    const LEFT: bool = false;
    fn load(params: &StridedParams, _: &Sequence) -> Self {
        Strided(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let StridedParams { first, window, step, .. } = self.0;
        k < first || (p - k < window && (p - k) % step == 0)
    }
}

/// Scores that fall with the root of the distance.
#[derive(Clone, Copy)]
pub struct Roots;

impl ScoreMarker for Roots {
    type Params = ();
}

impl ScoreMod for Roots {
    fn load(_: &(), _: &Sequence) -> Self {
        Roots
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        let distance = (p - k).max(0) as f32;
        s - sqrt(distance) + rsqrt(1.0 + distance)
    }
}

entry!(strided: With<Small<Scored<Strided, Roots>>>);
