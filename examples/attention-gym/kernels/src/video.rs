//! Masks of images and videos.
use kernels_gpu::prelude::*;

/// Sliding tile attention in two dimensions (STA, Zhang et al., 2025). The pixels of an image are ordered by
/// tiles, and a text may follow. A pixel sees the tiles near its own: a rectangle of tiles, which stops at
/// the image's edges. Pixels see the text, and the text sees everything.
#[derive(Clone, Copy)]
pub struct Tiles2d(Tiles2dParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tiles2dParams {
    /// The number of pixels of a tile.
    pub tile: FastDiv,
    /// The number of tiles of a row of tiles.
    pub columns: FastDiv,
    /// The number of rows of tiles.
    pub rows: i32,
    /// Rows and columns of tiles that a pixel sees.
    pub kernel: [i32; 2],
    /// The number of pixels.
    pub pixels: i32,
    /// The number of pixels and of tokens of the text.
    pub all: i32,
    pub reserved: u32,
}
no_padding! { Tiles2dParams { tile, columns, rows, kernel, pixels, all, reserved } }

impl MaskMarker for Tiles2d {
    type Params = Tiles2dParams;
}

impl MaskMod for Tiles2d {
    const LEFT: bool = false;
    fn load(params: &Tiles2dParams, _: &Sequence) -> Self {
        Tiles2d(*params)
    }
    fn keys(&self, _: i32) -> Range<i32> {
        0..self.0.all
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let Tiles2dParams { tile, columns, rows, kernel, pixels, .. } = self.0;
        let [query, key] = [p.max(0), k].map(|at| columns.div_rem(tile.div_rem(at as u32).0));
        let near = |query: u32, key: u32, kernel: i32, tiles: i32| {
            // The rectangle moves inwards at the edges.
            let first = (query as i32 - kernel / 2).min(tiles - kernel).max(0);
            (first..first + kernel).contains(&(key as i32))
        };
        let is_near =
            near(query.0, key.0, kernel[0], rows) & near(query.1, key.1, kernel[1], columns.get() as i32);
        p >= pixels || k >= pixels || is_near
    }
}

/// Spatial heads of sparse video generation (SVG, Xi et al., 2025): a prompt and the frames of a video. All
/// tokens see the prompt and, with `first`, the first frame. The prompt sees everything. Other tokens see a
/// window in both directions.
#[derive(Clone, Copy)]
pub struct Spatial(SpatialParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SpatialParams {
    /// The number of tokens of the prompt.
    pub prompt: i32,
    /// The number of first keys that every query sees: the prompt, or the prompt and the first frame.
    pub first: i32,
    /// The window: distances below this number.
    pub width: i32,
    pub reserved: u32,
}
no_padding! { SpatialParams { prompt, first, width, reserved } }

impl MaskMarker for Spatial {
    type Params = SpatialParams;
}

impl MaskMod for Spatial {
    const LEFT: bool = false;
    fn load(params: &SpatialParams, _: &Sequence) -> Self {
        Spatial(*params)
    }
    fn whole(&self) -> Range<i32> {
        0..self.0.first
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        p < self.0.prompt || k < self.0.first || p.abs_diff(k) < self.0.width as u32
    }
}

/// Temporal heads of sparse video generation: a token sees the tokens of all frames that are at nearly its
/// own place in their frame.
#[derive(Clone, Copy)]
pub struct Temporal(TemporalParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TemporalParams {
    /// The number of tokens of a frame.
    pub frame: FastDiv,
    /// The number of tokens of the prompt.
    pub prompt: i32,
    /// Distances between places, below this number.
    pub width: i32,
    pub reserved: u32,
}
no_padding! { TemporalParams { frame, prompt, width, reserved } }

impl MaskMarker for Temporal {
    type Params = TemporalParams;
}

impl MaskMod for Temporal {
    const LEFT: bool = false;
    fn load(params: &TemporalParams, _: &Sequence) -> Self {
        Temporal(*params)
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let prompt = self.0.prompt;
        let [query, key] = [p, k].map(|at| self.0.frame.div_rem((at - prompt) as u32).1);
        p < prompt || k < prompt || query.abs_diff(key) < self.0.width as u32
    }
}
