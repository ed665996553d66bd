//! Attention variants of our own. Each defines which keys a query sees, and how its scores change.
#![no_std]
#[cfg(not(target_arch = "nvptx64"))]
pub use kernels_gpu::exact;
use kernels_gpu::prelude::*;

/// Causal attention to a sequence's first keys and to a window (StreamingLLM, Xiao et al., 2023).
#[derive(Clone, Copy)]
pub struct Streaming(StreamingParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct StreamingParams {
    /// The number of first keys that every later query sees.
    pub first: i32,
    /// The number of keys of the window, including the query's own key.
    pub window: i32,
}
no_padding! { StreamingParams { first, window } }

impl MaskMarker for Streaming {
    type Params = StreamingParams;
}

impl MaskMod for Streaming {
    const LEFT: bool = false;
    fn load(params: &StreamingParams, _: &Sequence) -> Self {
        Streaming(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn whole(&self) -> Range<i32> {
        0..self.0.first
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        k < self.0.first || k > p - self.0.window
    }
}

/// Causal attention within documents: a query sees the keys of its own document.
#[derive(Clone, Copy)]
pub struct Documents {
    of: Integers,
}

impl MaskMarker for Documents {
    /// The index of each position's document.
    type Params = Integers;
}

impl MaskMod for Documents {
    const LEFT: bool = false;
    fn load(of: &Integers, _: &Sequence) -> Self {
        Documents { of: *of }
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let of = GlobalInts::new(&self.of);
        of.nearest(p as u32) == of.nearest(k as u32)
    }
}

/// Attention in an image whose pixels are keys, row by row. A query sees the pixels that are at most `radius`
/// rows and columns away.
#[derive(Clone, Copy)]
pub struct Neighbours(NeighboursParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct NeighboursParams {
    /// The number of pixels of a row.
    pub width: FastDiv,
    pub pixels: i32,
    pub radius: i32,
    pub reserved: u32,
}
no_padding! { NeighboursParams { width, pixels, radius, reserved } }

impl MaskMarker for Neighbours {
    type Params = NeighboursParams;
}

impl MaskMod for Neighbours {
    fn load(params: &NeighboursParams, _: &Sequence) -> Self {
        Neighbours(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        let reach = self.0.radius * (self.0.pixels + 1);
        p - reach..p + reach + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let (query, key) = (self.0.width.div_rem(p as u32), self.0.width.div_rem(k as u32));
        query.0.abs_diff(key.0) <= self.0.radius as u32 && query.1.abs_diff(key.1) <= self.0.radius as u32
    }
}

/// A learned bias per head and distance (T5, Raffel et al., 2020). Each distance has its own value.
#[derive(Clone, Copy)]
pub struct T5 {
    /// The biases of the head.
    bias: Integers,
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
}

impl ScoreMod for T5 {
    fn load(params: &T5Params, of: &Sequence) -> Self {
        T5 { bias: params.bias.part(of.head * params.distances, params.distances) }
    }
    fn score(&self, s: f32, p: i32, k: i32) -> f32 {
        s + GlobalInts::new(&self.bias).nearest_f32((p - k) as u32)
    }
}

/// Tiles of 128 queries and 64 keys for head dim 64. `docs/your-own-attention.md` has measurements.
type Large<Mask> = Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>;
/// Tiles of 128 queries and 32 keys. These tiles need half the registers for scores, which helps functions
/// that need many registers.
type Small<Mask> = Fwd<F16, Mask, 8, 2, 1, 2, 4, 4, 2>;

entry!(streaming_d64: With<Large<Streaming>>);
entry!(streaming_decode_d64: With<Decode<F16, F16, Streaming, Rows, 2, 4, 8, 3>>);
entry!(documents_d64: With<Large<Documents>>);
entry!(neighbours_d64: With<Small<Neighbours>>);
entry!(t5_d64: With<Small<Scored<Causal, T5>>>);
entry!(t5_varlen_d64: With<Varlen<Large<Scored<Causal, T5>>>>);
