//! Masks of images and videos.
use kernels_gpu::prelude::*;

/// Sliding tile attention (STA, Zhang et al., 2025). The pixels of a video are ordered by tiles, and a text
/// may follow. A pixel sees the tiles near its own: a box of tiles, which stops at the edges of the video.
/// Pixels see the text, and the text sees everything. An image is a video with one tile in time.
#[derive(Clone, Copy)]
pub struct VideoTiles(VideoTilesParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct VideoTilesParams {
    /// The number of pixels of a tile.
    pub tile: FastDiv,
    /// The number of tiles of a row of tiles.
    pub columns: FastDiv,
    /// The number of rows of tiles of a frame.
    pub rows: FastDiv,
    /// The number of tiles behind one another in time.
    pub frames: i32,
    /// The number of tiles that a pixel sees: in time, of rows, of columns.
    pub kernel: [i32; 3],
    /// The number of pixels.
    pub pixels: i32,
    /// The number of pixels and of tokens of the text.
    pub all: i32,
    pub reserved: u32,
}
no_padding! { VideoTilesParams { tile, columns, rows, frames, kernel, pixels, all, reserved } }

impl MaskMarker for VideoTiles {
    type Params = VideoTilesParams;
}

impl MaskMod for VideoTiles {
    const LEFT: bool = false;
    fn load(params: &VideoTilesParams, _: &Sequence) -> Self {
        VideoTiles(*params)
    }
    fn keys(&self, _: i32) -> Range<i32> {
        0..self.0.all
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let VideoTilesParams { tile, columns, rows, frames, kernel, pixels, .. } = self.0;
        let [query, key] = [p.max(0), k].map(|at| {
            let (row, column) = columns.div_rem(tile.div_rem(at as u32).0);
            let (frame, row) = rows.div_rem(row);
            [frame as i32, row as i32, column as i32]
        });
        let near = |axis: usize, tiles: i32| {
            // The box moves inwards at the edges.
            let first = (query[axis] - kernel[axis] / 2).min(tiles - kernel[axis]).max(0);
            (first..first + kernel[axis]).contains(&key[axis])
        };
        let is_near = near(0, frames) & near(1, rows.get() as i32) & near(2, columns.get() as i32);
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
