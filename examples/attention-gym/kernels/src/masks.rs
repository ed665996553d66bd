//! Masks of texts: drafts, dilated and global windows, diffusion in blocks, shared prefixes, images.
use kernels_gpu::prelude::*;

/// Training of drafts (JetSpec): the queries are blocks of drafts behind a prefix of keys. A query sees the
/// prefix, and its own block up to itself.
#[derive(Clone, Copy)]
pub struct Drafts {
    block: FastDiv,
    /// The number of keys of the prefix.
    prefix: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DraftsParams {
    /// The number of drafts of a block.
    pub block: FastDiv,
    pub reserved: u32,
}
no_padding! { DraftsParams { block, reserved } }

impl MaskMarker for Drafts {
    type Params = DraftsParams;
}

impl MaskMod for Drafts {
    const LEFT: bool = false;
    fn load(params: &DraftsParams, of: &Sequence) -> Self {
        Drafts { block: params.block, prefix: of.shift }
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn whole(&self) -> Range<i32> {
        0..self.prefix
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let (_, before) = self.block.div_rem((p - self.prefix) as u32);
        k < self.prefix || k >= p - before as i32
    }
}

/// A window in both directions, of which a query sees every `step`-th key.
#[derive(Clone, Copy)]
pub struct Dilated(DilatedParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DilatedParams {
    pub step: FastDiv,
    /// The largest distance.
    pub window: i32,
}
no_padding! { DilatedParams { step, window } }

impl MaskMarker for Dilated {
    type Params = DilatedParams;
}

impl MaskMod for Dilated {
    fn load(params: &DilatedParams, _: &Sequence) -> Self {
        Dilated(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        p - self.0.window..p + self.0.window + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        self.0.step.div_rem(p.abs_diff(k)).1 == 0
    }
}

/// A window in both directions, and global tokens, which see all keys and are seen by all queries
/// (Longformer, Beltagy et al., 2020).
#[derive(Clone, Copy)]
pub struct GlobalWindow(GlobalWindowParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct GlobalWindowParams {
    /// For each position, 1 for a global token and 0 for others. Later positions have the last number.
    pub is_global: Integers,
    /// The largest distance in the window.
    pub window: i32,
    pub reserved: u32,
}
no_padding! { GlobalWindowParams { is_global, window, reserved } }

impl MaskMarker for GlobalWindow {
    type Params = GlobalWindowParams;
}

impl MaskMod for GlobalWindow {
    const LEFT: bool = false;
    fn load(params: &GlobalWindowParams, _: &Sequence) -> Self {
        GlobalWindow(*params)
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let is_global = GlobalInts::new(&self.0.is_global);
        let either = is_global.nearest(p as u32) | is_global.nearest(k as u32);
        p.abs_diff(k) <= self.0.window as u32 || either != 0
    }
}

/// Block diffusion (BD3-LM, Arriola et al., 2025): the first half of a sequence is noised, and the second
/// half is clean. Noised tokens see their own noised block and all earlier clean blocks. Clean tokens see
/// clean blocks up to their own.
#[derive(Clone, Copy)]
pub struct Diffusion(DiffusionParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiffusionParams {
    /// The number of tokens of a block.
    pub block: FastDiv,
    /// The number of tokens of a half.
    pub half: i32,
}
no_padding! { DiffusionParams { block, half } }

impl MaskMarker for Diffusion {
    type Params = DiffusionParams;
}

impl MaskMod for Diffusion {
    const LEFT: bool = false;
    fn load(params: &DiffusionParams, _: &Sequence) -> Self {
        Diffusion(*params)
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let half = self.0.half;
        let block = |at: i32| self.0.block.div_rem((if at < half { at } else { at - half }) as u32).0;
        let (query, key) = (block(p.max(0)), block(k));
        let (is_noised, is_clean) = (p < half, k >= half);
        (query == key && is_noised != is_clean) || (is_clean && key < query)
    }
}

/// Documents that continue a shared document: a query sees its own document up to itself, and all of the
/// document that precedes its own.
#[derive(Clone, Copy)]
pub struct SharedPrefix(SharedPrefixParams);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SharedPrefixParams {
    /// The document of each position.
    pub documents: Integers,
    /// Three positions per document: its first, the shared document's first, and the shared document's end.
    pub spans: Integers,
}
no_padding! { SharedPrefixParams { documents, spans } }

impl MaskMarker for SharedPrefix {
    type Params = SharedPrefixParams;
}

impl MaskMod for SharedPrefix {
    const LEFT: bool = false;
    fn load(params: &SharedPrefixParams, _: &Sequence) -> Self {
        SharedPrefix(*params)
    }
    fn keys(&self, p: i32) -> Range<i32> {
        0..p + 1
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let first = 3 * GlobalInts::new(&self.0.documents).nearest(p as u32) as u32;
        let [own, start, end] = [0, 1, 2].map(|i| GlobalInts::new(&self.0.spans).nearest(first + i));
        k >= own || (start..end).contains(&k)
    }
}

/// Cross attention of a text to images (Flamingo, Alayrac et al., 2022). The keys are the tokens of images,
/// and each image has an interval of queries that see it.
#[derive(Clone, Copy)]
pub struct Images {
    params: ImagesParams,
    /// The position of query 0.
    first: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ImagesParams {
    /// For each image, the first query and the end of the queries that see it.
    pub texts: Integers,
    /// The number of tokens of an image.
    pub image: FastDiv,
    pub reserved: u32,
}
no_padding! { ImagesParams { texts, image, reserved } }

impl MaskMarker for Images {
    type Params = ImagesParams;
}

impl MaskMod for Images {
    const LEFT: bool = false;
    fn load(params: &ImagesParams, of: &Sequence) -> Self {
        Images { params: *params, first: of.shift }
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        let (image, _) = self.params.image.div_rem(k as u32);
        let texts = GlobalInts::new(&self.params.texts);
        (texts.nearest(2 * image)..texts.nearest(2 * image + 1)).contains(&(p - self.first))
    }
}
