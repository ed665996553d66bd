//! Kernels of a caller, for tests: functions that repeat FerroFlash's masks and scores, and functions that
//! misbehave.
#![no_std]
pub mod block_bias;
pub mod block_sparse;
mod causal_mask;
#[cfg(any(feature = "forged-made", feature = "forged-changed"))]
pub mod forged;
pub mod strided;
pub mod trained;
pub mod trained_table;

use core::f32::consts::LOG2_E;
#[cfg(not(target_arch = "nvptx64"))]
pub use kernels_gpu::exact;
use kernels_gpu::prelude::*;

pub use causal_mask::OwnCausal;

/// [`Chunked`], as a caller would write it.
#[derive(Clone, Copy)]
pub struct OwnChunked(OwnChunkedParams);

/// Parameters of [`OwnChunked`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OwnChunkedParams {
    /// Number of keys of a chunk.
    pub chunk: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { OwnChunkedParams { chunk, reserved } }

impl MaskMarker for OwnChunked {
    type Params = OwnChunkedParams;
}

impl MaskMod for OwnChunked {
    const HOLES: bool = false;
    fn load(params: &OwnChunkedParams, _: &Sequence) -> Self {
        OwnChunked(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        let (_, within) = self.0.chunk.div_rem(p.max(0) as u32);
        p.max(0) - within as i32..p + 1
    }
}

/// A softcap, as a caller would write it: `cap * tanh(s / cap)`.
#[derive(Clone, Copy)]
pub struct OwnSoftcap {
    /// Factor that converts products to arguments of `tanh`.
    before: f32,
    /// Factor that converts values of `tanh` to products.
    after: f32,
}

impl OwnSoftcap {
    fn tanh(&self, s: f32) -> f32 {
        1.0 - 2.0 * rcp(1.0 + ex2(s * self.before * (2.0 * LOG2_E)))
    }
}

/// Parameters of [`OwnSoftcap`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OwnSoftcapParams {
    /// The softcap.
    pub cap: f32,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { OwnSoftcapParams { cap, reserved } }

impl ScoreMarker for OwnSoftcap {
    type Params = OwnSoftcapParams;
}

impl ScoreMod for OwnSoftcap {
    const SCALED: bool = false;
    const ADDITIVE: bool = false;
    fn load(params: &OwnSoftcapParams, of: &Sequence) -> Self {
        OwnSoftcap { before: of.scale() * rcp(params.cap), after: params.cap * of.unscale() }
    }
    fn score(&self, s: f32, _: i32, _: i32) -> f32 {
        self.tanh(s) * self.after
    }
    fn gradient(&self, s: f32, _: i32, _: i32) -> f32 {
        let tanh = self.tanh(s);
        1.0 - tanh * tanh
    }
}

/// ALiBi slopes, as a caller would write them.
#[derive(Clone, Copy)]
pub struct OwnAlibi {
    slope: f32,
}

impl ScoreMarker for OwnAlibi {
    /// The slope of each head, as bits of f32.
    type Params = Integers;
}

impl ScoreMod for OwnAlibi {
    const SCALED: bool = false;
    fn load(slopes: &Integers, of: &Sequence) -> Self {
        OwnAlibi { slope: GlobalInts::new(slopes).nearest_f32(of.head) * of.unscale() }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        fma(((p - k) as f32).abs(), -self.slope, s)
    }
}

/// A mask with four arbitrary intervals, and with arbitrary keys without holes.
#[derive(Clone, Copy)]
pub struct Wild(WildParams);

/// Parameters of [`Wild`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WildParams {
    /// Starts of the intervals. Position `p` has interval `p % 4`.
    pub starts: [i32; 4],
    /// Ends of the intervals. Position `p` has interval `p % 4`.
    pub ends: [i32; 4],
    /// Start and end of the keys without holes.
    pub whole: [i32; 2],
    /// All keys up to this key are holes.
    pub holes: i32,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { WildParams { starts, ends, whole, holes, reserved } }

impl MaskMarker for Wild {
    type Params = WildParams;
}

impl MaskMod for Wild {
    fn load(params: &WildParams, _: &Sequence) -> Self {
        Wild(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        let of = |bounds: [i32; 4]| match p as u32 % 4 {
            0 => bounds[0],
            1 => bounds[1],
            2 => bounds[2],
            _ => bounds[3],
        };
        of(self.0.starts)..of(self.0.ends)
    }
    fn whole(&self) -> Range<i32> {
        self.0.whole[0]..self.0.whole[1]
    }
    fn sees(&self, _: i32, k: i32) -> bool {
        k > self.0.holes
    }
}

/// Scores in which one query has a given value from one key on.
#[derive(Clone, Copy)]
pub struct Planted(PlantedParams);

/// Parameters of [`Planted`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PlantedParams {
    /// The value of these scores.
    pub value: f32,
    /// The position of the query.
    pub query: i32,
    /// The first key that has this value.
    pub key: i32,
    /// Padding: 0.
    pub reserved: u32,
}
no_padding! { PlantedParams { value, query, key, reserved } }

impl ScoreMarker for Planted {
    type Params = PlantedParams;
}

impl ScoreMod for Planted {
    fn load(params: &PlantedParams, _: &Sequence) -> Self {
        Planted(*params)
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        if p == self.0.query && k >= self.0.key { self.0.value } else { s }
    }
}

/// [`OwnCausal`] with an error: a query sees one key too many.
#[derive(Clone, Copy)]
pub struct OffByOne;

impl MaskMarker for OffByOne {
    type Params = ();
}

impl MaskMod for OffByOne {
    const LEFT: bool = false;
    const HOLES: bool = false;
    fn load(_: &(), _: &Sequence) -> Self {
        OffByOne
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 2
    }
}

/// [`OwnAlibi`] with an error: the slope of the next head.
#[derive(Clone, Copy)]
pub struct OtherHead(OwnAlibi);

impl ScoreMarker for OtherHead {
    type Params = Integers;
}

impl ScoreMod for OtherHead {
    const SCALED: bool = false;
    fn load(slopes: &Integers, of: &Sequence) -> Self {
        let mut other = *of;
        other.head += 1;
        OtherHead(OwnAlibi::load(slopes, &other))
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        self.0.score(s, p, k)
    }
}

/// [`OwnCausal`], which says that it has no holes, with holes: every seventh key.
#[derive(Clone, Copy)]
pub struct HiddenHoles;

impl MaskMarker for HiddenHoles {
    type Params = ();
}

impl MaskMod for HiddenHoles {
    const LEFT: bool = false;
    const HOLES: bool = false;
    fn load(_: &(), _: &Sequence) -> Self {
        HiddenHoles
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, _: i32, k: i32) -> bool {
        k % 7 != 3
    }
}

/// A mask and scores that divide by a parameter. If the parameter is 0, they panic.
#[derive(Clone, Copy)]
pub struct Divides<const IN_SCORES: bool>(i32);

impl<const IN_SCORES: bool> MaskMarker for Divides<IN_SCORES> {
    type Params = i64;
}

impl<const IN_SCORES: bool> MaskMod for Divides<IN_SCORES> {
    fn load(by: &i64, _: &Sequence) -> Self {
        Divides(*by as i32)
    }
    fn sees(&self, _: i32, k: i32) -> bool {
        IN_SCORES || k % self.0 == 0
    }
}

impl<const IN_SCORES: bool> ScoreMarker for Divides<IN_SCORES> {
    type Params = i64;
}

impl<const IN_SCORES: bool> ScoreMod for Divides<IN_SCORES> {
    fn load(by: &i64, _: &Sequence) -> Self {
        Divides(*by as i32)
    }
    fn score(&self, s: f32, _: i32, k: i32) -> f32 {
        s + (k / self.0) as f32
    }
}

/// A kernel of head dim 64 with tiles of 128 queries and 64 keys.
type Large<Mask> = Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>;
/// A kernel of head dim 64 with tiles of 128 queries and 32 keys.
type Small<Mask> = Fwd<F16, Mask, 8, 2, 1, 2, 4, 4, 2>;
/// A Hopper kernel of head dim 128.
type Hopper<Mask> = FwdHopper<F16, Mask, 2, 8, 8, 2, true>;

entry!(causal: With<Large<Causal>>);
entry!(own_causal: With<Large<OwnCausal>>);
entry!(causal_varlen: With<Varlen<Large<Causal>>>);
entry!(own_causal_varlen: With<Varlen<Large<OwnCausal>>>);
entry!(causal_hopper: With<Hopper<Causal>>);
entry!(own_causal_hopper: With<Hopper<OwnCausal>>);
entry!(chunked: With<Large<Chunked>>);
entry!(own_chunked: With<Large<OwnChunked>>);
entry!(local: With<Small<Local>>);
entry!(own_softcap: With<Small<Scored<Full, OwnSoftcap>>>);
entry!(own_alibi: With<Small<Scored<Full, OwnAlibi>>>);
entry!(wild: With<Small<Wild>>);
entry!(wild_paged: With<Paged<Small<Wild>>>);
entry!(planted: With<Small<Scored<Full, Planted>>>);
entry!(off_by_one: With<Large<OffByOne>>);
entry!(other_head: With<Small<Scored<Full, OtherHead>>>);
