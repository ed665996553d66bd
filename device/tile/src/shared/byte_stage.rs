//! Two operands of bytes and their scales, which lie in global memory as they lie in shared memory.
use crate::copy::CpAsync;
use crate::global::GlobalRows;
use crate::group::{Capability, ThreadGroup};
use crate::shared::reader::Reader;
use crate::shared::{CopiedScales, SharedLayout, SharedTile, TileSlot};
use crate::{Warp, layout};
use contract::{F32, Int8, Tensor};
use core::marker::PhantomData;
use cuda_std::cp_async::{cp_async, cp_async_4_or_zero};
use cuda_std::memory::{ld_shared_b32, ld_shared_v4_b32, st_global_b32, st_global_v4_b32};

/// One or two operands for products `a b^T`, whose rows are columns of the products' results. Their bytes lie
/// in the order of [`layout::byte_of_column`], but those of integers that a cache has lie in order.
///
/// - `N x D` base tiles: integers with one scale per row. With `D` = 0, there is neither.
/// - `DV x N` base tiles: e4m3, with one scale for all of them. With `DV` = 0, there is neither.
///
/// Parts: the tiles in panels, one f32 per row in the order of [`layout::byte_of_column`], one more f32.
pub struct ByteStage<const N: usize, const D: usize, const DV: usize = D> {
    base: u32,
}

/// A [`ByteStage`] while copies of transport `By` write it.
pub struct ByteStageSlot<const N: usize, const D: usize, const DV: usize, By> {
    base: u32,
    by: PhantomData<By>,
}

impl<const N: usize, const D: usize, const DV: usize> ByteStage<N, D, DV> {
    /// Bytes of the integers.
    const TILE: u32 = (N * D * 256) as u32;
    /// Offset of the scales of rows.
    const SCALES: u32 = Self::TILE + (N * DV * 256) as u32;
    /// Offset of the scale of the second operand.
    const SCALE: u32 = Self::SCALES + if D == 0 { 0 } else { N as u32 * 64 };
    /// Number of bytes of a stage in global memory, which is a multiple of 16.
    pub const IMAGE_BYTES: u32 = Self::SCALE + if DV == 0 { 0 } else { layout::CHUNK };

    /// Addresses of the first operand, by row tile and k-step of 32 columns.
    #[inline(always)]
    pub(crate) fn integers(&self, warp: Warp) -> Reader<Int8, N, D> {
        Reader::rows_first(self.base, warp.lane)
    }

    /// Addresses of the second operand, by row tile and k-step of 32 columns.
    #[inline(always)]
    pub(crate) fn floats(&self, warp: Warp) -> Reader<Int8, DV, N> {
        Reader::rows_first(self.base + Self::TILE, warp.lane)
    }

    /// The scales of the rows of row tile `n` whose numbers this lane has in an accumulator: for each
    /// 8-column half, two.
    #[inline(always)]
    pub(crate) fn row_scales(&self, n: usize, warp: Warp) -> [f32; 4] {
        let at = self.base + Self::SCALES + n as u32 * 64 + warp.lane % 4 * 16;
        // SAFETY: the scales of the tile's rows are a part of the stage, which may be read.
        unsafe { ld_shared_v4_b32(at) }.map(f32::from_bits)
    }

    /// The scale of the second operand.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        // SAFETY: the scale is a part of the stage, which may be read.
        f32::from_bits(unsafe { ld_shared_b32(self.base + Self::SCALE) })
    }
}

// SAFETY: both types address only bytes of the stage.
unsafe impl<const N: usize, const D: usize, const DV: usize> SharedLayout for ByteStage<N, D, DV> {
    const BYTES: usize = (Self::IMAGE_BYTES as usize).next_multiple_of(Self::ALIGN);
    /// `ldmatrix` and `cp.async` need no more: only TMA and `wgmma` compute the swizzle from addresses.
    /// Integers alone lie beside a tile, which has panels.
    const ALIGN: usize = if DV == 0 { layout::PANEL_ALIGN } else { 128 };
    type Slot<By> = ByteStageSlot<N, D, DV, By>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        ByteStage { base }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> ByteStageSlot<N, D, DV, By> {
        ByteStageSlot { base, by: PhantomData }
    }
}

/// The images of one head's stages in global memory. The means of the columns of each sequence lie before
/// them, those of the first sequence nearest: a row of f32 each.
#[derive(Clone, Copy)]
pub struct StageImages<const N: usize, const D: usize, const DV: usize = D> {
    base: u64,
    stride: u32,
}

impl<const N: usize, const D: usize, const DV: usize> StageImages<N, D, DV> {
    /// Head `head` of batch `batch`. `row_bytes` of the tensor is the distance of images.
    #[inline(always)]
    pub fn new(tensor: &Tensor, batch: u32, head: u32) -> Self {
        let offset = (batch as u64)
            .wrapping_mul(tensor.batch_bytes)
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes));
        StageImages { base: tensor.base.wrapping_add(offset), stride: tensor.row_bytes }
    }

    /// The means of sequence `sequence`, which must exist.
    #[inline(always)]
    pub fn means(&self, sequence: u32) -> GlobalRows<F32, D> {
        let behind = (sequence as u64 + 1).wrapping_mul(D as u64 * 64);
        GlobalRows::row_of(self.base.wrapping_sub(behind))
    }

    /// The images from image `n` on.
    #[inline(always)]
    pub fn skip(&self, n: u32) -> Self {
        StageImages { base: self.base.wrapping_add(n as u64 * self.stride as u64), ..*self }
    }

    /// Image `n`, which must exist, as memory that a kernel writes.
    #[inline(always)]
    pub fn image(&self, n: u32, _: &impl Capability) -> StageImage<N, D, DV> {
        StageImage { base: self.base.wrapping_add(n as u64 * self.stride as u64) }
    }
}

impl<const N: usize, const D: usize, const DV: usize, W: ThreadGroup> ByteStageSlot<N, D, DV, CpAsync<W>> {
    /// Starts the copies of image `n`, which must exist.
    #[inline(always)]
    pub fn copy(&self, images: &StageImages<N, D, DV>, n: u32, group: &W) {
        let chunks = ByteStage::<N, D, DV>::IMAGE_BYTES / layout::CHUNK;
        let mine = group.member() * layout::CHUNK;
        let from = images.image(n, group).base.wrapping_add(mine as u64);
        for i in 0..chunks.div_ceil(W::THREADS) {
            let step = i * W::THREADS * layout::CHUNK;
            if (i + 1) * W::THREADS <= chunks || i * W::THREADS + group.member() < chunks {
                // SAFETY: the chunk is a part of the stage and of its image, whose bases are multiples of 16,
                // as `Tensor` promises. No thread reads the stage before the copy has landed.
                unsafe { cp_async(self.base + mine + step, from.wrapping_add(step as u64)) }
            }
        }
    }
}

/// The scales of a stage's integers, of `R` base tiles of rows.
pub struct KeyScales<const R: usize>;

/// [`KeyScales`] while copies of transport `By` write them.
pub struct KeyScalesSlot<const R: usize, By> {
    base: u32,
    by: PhantomData<By>,
}

// SAFETY: `Slot` addresses only the words of the scales, and `Self` none.
unsafe impl<const R: usize> SharedLayout for KeyScales<R> {
    const BYTES: usize = R * 64;
    const ALIGN: usize = 16;
    type Slot<By> = KeyScalesSlot<R, By>;
    #[inline(always)]
    unsafe fn at(_: u32) -> Self {
        KeyScales
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> KeyScalesSlot<R, By> {
        KeyScalesSlot { base, by: PhantomData }
    }
}

impl<const R: usize> CopiedScales for KeyScales<R> {
    const EXIST: bool = true;
    const COUNT: u32 = Self::ROWS;
    const ROWS: u32 = R as u32 * 16;
    #[inline(always)]
    fn place(i: u32) -> [u32; 2] {
        [0, i / 16 * 16 + layout::column_of_byte(i % 16)]
    }
    #[inline(always)]
    unsafe fn copy<W: ThreadGroup>(slot: &KeyScalesSlot<R, CpAsync<W>>, i: u32, from: u64, present: bool) {
        // SAFETY: the word is a word of this slot, because the caller promises that `i` is below the count;
        // no thread reads it before the copy has landed. The caller promises that `from` may be read.
        unsafe { cp_async_4_or_zero(slot.base + i * 4, from, present) }
    }
}

impl<const N: usize, const D: usize, const DV: usize, W: ThreadGroup> ByteStageSlot<N, D, DV, CpAsync<W>> {
    /// The integers, in order, and their scales, for copies from a cache.
    #[inline(always)]
    pub fn keys(&self) -> (TileSlot<Int8, N, D, CpAsync<W>>, KeyScalesSlot<N, CpAsync<W>>) {
        // SAFETY: both are parts of the stage, which may be written. Only readers that know the stage's base
        // compute the swizzle.
        unsafe {
            let scales = KeyScales::<N>::slot(self.base + ByteStage::<N, D, DV>::SCALES);
            (SharedTile::<Int8, N, D>::slot(self.base), scales)
        }
    }

    /// Starts the copies of the e4m3 of image `n`, which must exist, and of their scale.
    #[inline(always)]
    pub fn copy_floats(&self, images: &StageImages<N, 0, DV>, n: u32, group: &W) {
        let (chunks, mine) = ((N * DV * 16) as u32, group.member() * layout::CHUNK);
        const { assert!((N * DV * 16).is_multiple_of(W::THREADS as usize), "all threads copy alike") }
        let from = images.image(n, group).base.wrapping_add(mine as u64);
        let (to, scale) = (self.base + ByteStage::<N, D, DV>::TILE, ByteStage::<N, D, DV>::SCALE);
        for i in 0..chunks / W::THREADS {
            let step = i * W::THREADS * layout::CHUNK;
            // SAFETY: the chunk is a part of the stage and of its image, whose bases are multiples of 16, as
            // `Tensor` promises. No thread reads the stage before the copy has landed.
            unsafe { cp_async(to + mine + step, from.wrapping_add(step as u64)) }
        }
        if group.member() == 0 {
            let last = from.wrapping_add((chunks * layout::CHUNK) as u64);
            // SAFETY: as above: the scale's chunk is the last one of both.
            unsafe { cp_async(self.base + scale, last) }
        }
    }
}

/// The image of one stage in global memory, which a kernel writes.
#[derive(Clone, Copy)]
pub struct StageImage<const N: usize, const D: usize, const DV: usize = D> {
    base: u64,
}

impl<const N: usize, const D: usize, const DV: usize> StageImage<N, D, DV> {
    #[inline(always)]
    fn put(&self, at: u32, x: u32) {
        // SAFETY: callers pass offsets of words of the image, which exists. Its base is a multiple of 16.
        unsafe { st_global_b32(self.base.wrapping_add(at as u64), x) }
    }

    /// Stores word `word` of row `row` of the integers.
    #[inline(always)]
    pub fn store_integers(&self, row: u32, word: u32, x: u32, _: Warp) {
        self.put(SharedTile::<Int8, N, D>::offset(row, word / 4) + word % 4 * 4, x)
    }

    /// Stores the scale of row `row` of the integers.
    #[inline(always)]
    pub fn store_row_scale(&self, row: u32, x: f32, _: Warp) {
        let place = row / 16 * 16 + layout::byte_of_column(row % 16);
        self.put(ByteStage::<N, D, DV>::SCALES + place * 4, x.to_bits())
    }

    /// Stores word `word` of row `row` of the e4m3.
    #[inline(always)]
    pub fn store_floats(&self, row: u32, word: u32, x: u32, _: Warp) {
        let within = SharedTile::<Int8, DV, N>::offset(row, word / 4) + word % 4 * 4;
        self.put(ByteStage::<N, D, DV>::TILE + within, x)
    }

    /// Stores the scale of the e4m3, which fills the image's last chunk: copies take whole chunks.
    #[inline(always)]
    pub fn store_scale(&self, x: f32, _: Warp) {
        let at = self.base.wrapping_add(u64::from(ByteStage::<N, D, DV>::SCALE));
        // SAFETY: the last chunk of the image exists. Its base is a multiple of 16.
        unsafe { st_global_v4_b32(at, [x.to_bits(); 4]) }
    }
}
