//! Masks: which keys a query sees.
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

/// Causal attention to a window.
#[derive(Clone, Copy)]
pub struct Window(i32);

impl MaskMarker for Window {
    /// The number of keys of the window, including the query's own key.
    type Params = i64;
}

impl MaskMod for Window {
    const HOLES: bool = false;
    fn load(keys: &i64, _: &Sequence) -> Self {
        Window(*keys as i32)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        p + 1 - self.0..p + 1
    }
}

/// Causal attention within documents: a query sees the keys of its own document.
#[derive(Clone, Copy)]
pub struct Documents(Integers);

impl MaskMarker for Documents {
    /// The index of each position's document.
    type Params = Integers;
}

impl MaskMod for Documents {
    const LEFT: bool = false;
    fn load(of: &Integers, _: &Sequence) -> Self {
        Documents(*of)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let of = GlobalInts::new(&self.0);
        of.nearest(p as u32) == of.nearest(k as u32)
    }
}

/// Causal attention, and a prefix that every query sees (prefix-LM, Raffel et al., 2020).
#[derive(Clone, Copy)]
pub struct PrefixLm(i32);

impl MaskMarker for PrefixLm {
    /// The number of keys of each sequence's prefix.
    type Params = Integers;
}

impl MaskMod for PrefixLm {
    const LEFT: bool = false;
    const HOLES: bool = false;
    fn load(prefixes: &Integers, of: &Sequence) -> Self {
        PrefixLm(GlobalInts::new(prefixes).nearest(of.index))
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..self.0.max(p + 1)
    }
}

/// Causal attention within chunks (Llama 4's local layers).
#[derive(Clone, Copy)]
pub struct Chunks(FastDiv);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChunksParams {
    /// The number of keys of a chunk.
    pub chunk: FastDiv,
    pub reserved: u32,
}
no_padding! { ChunksParams { chunk, reserved } }

impl MaskMarker for Chunks {
    type Params = ChunksParams;
}

impl MaskMod for Chunks {
    const HOLES: bool = false;
    fn load(params: &ChunksParams, _: &Sequence) -> Self {
        Chunks(params.chunk)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        let (_, within) = self.0.div_rem(p.max(0) as u32);
        p.max(0) - within as i32..p + 1
    }
}

/// Attention in an image whose pixels are keys, row by row. A query sees the pixels that are at most `radius`
/// rows and columns away (NATTEN, Hassani et al., 2023).
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
        // One comparison of unsigned numbers per coordinate: `query - radius <= key <= query + radius`.
        let near = |query: u32, key: u32| {
            let first = query.wrapping_sub(self.0.radius as u32);
            key.wrapping_sub(first) <= 2 * self.0.radius as u32
        };
        near(query.0, key.0) & near(query.1, key.1)
    }
}

/// A tree of drafts behind all earlier keys (Medusa, Cai et al., 2024): the queries are the nodes of the
/// tree, parents first, and the last keys belong to the nodes. A node sees its ancestors and itself.
#[derive(Clone, Copy)]
pub struct Tree {
    params: TreeParams,
    /// The key of the first node.
    first: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TreeParams {
    /// Bits `[node][32 * words]`: whether a node is an ancestor, or the node itself.
    pub ancestors: Integers,
    /// Words of a node.
    pub words: i32,
    pub reserved: u32,
}
no_padding! { TreeParams { ancestors, words, reserved } }

impl MaskMarker for Tree {
    type Params = TreeParams;
}

impl MaskMod for Tree {
    const LEFT: bool = false;
    fn load(params: &TreeParams, of: &Sequence) -> Self {
        Tree { params: *params, first: of.shift }
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn whole(&self) -> Range<i32> {
        0..self.first
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let (node, key) = (p - self.first, k - self.first);
        let word =
            GlobalInts::new(&self.params.ancestors).nearest((node * self.params.words + key / 32) as u32);
        key < 0 || word >> (key % 32) & 1 == 1
    }
}
