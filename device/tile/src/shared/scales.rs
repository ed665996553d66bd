//! Scales of rows, in shared memory beside the tiles of keys and of values.
use crate::copy::CpAsync;
use crate::group::ThreadGroup;
use crate::shared::SharedLayout;
use contract::{Bf16, E4m3, Element, F16, Int8, Native};
use core::marker::PhantomData;
use cuda_std::cp_async::cp_async_4_or_zero;
use cuda_std::memory::{ld_shared_b32, ld_shared_v4_b32};

/// An element type, and the scales that its rows have.
pub trait Scaled: Element {
    /// The scales beside `R` base tiles of rows of keys and of values. `()` if rows have no scales.
    type Scales<const R: usize>: StageScales;
}

/// Scales of a stage's rows, which threads copy from a cache: one each.
pub trait CopiedScales: SharedLayout {
    /// Whether rows have scales.
    const EXIST: bool;
    /// Number of scales.
    const COUNT: u32;
    /// Number of rows of a stage.
    const ROWS: u32;
    /// Scale `i`: whether it is a key's (0) or a value's (1), and the row.
    fn place(i: u32) -> [u32; 2];
    /// Starts the copy of scale `i`. If `present` is false, or the scale does not exist, the scale is 0.
    ///
    /// # Safety
    /// - If `present` is true, a f32 may be read at `from`, a multiple of 4.
    /// - `i` is below `COUNT`.
    unsafe fn copy<W: ThreadGroup>(slot: &Self::Slot<CpAsync<W>>, i: u32, from: u64, present: bool);
}

/// The scales beside a tile of keys and a tile of values: [`RowScales`], or `()`.
pub trait StageScales: CopiedScales {
    /// The scale of row `row` of keys (0) or of values (1). A row that does not exist has the scale of
    /// another row.
    fn load(&self, which: usize, row: u32) -> f32;
    /// The scales of keys and of values of rows `row` and `row + 8` of the first base tile, where `row` is
    /// below 8.
    fn load_lane(&self, row: u32) -> [[f32; 2]; 2];
}

/// The scales of `R` base tiles of rows of keys and of values.
pub struct RowScales<const R: usize> {
    base: u32,
}

/// [`RowScales`] while copies of transport `By` write them.
pub struct RowScalesSlot<const R: usize, By> {
    base: u32,
    by: PhantomData<By>,
}

impl<const R: usize> RowScales<R> {
    /// A lane of a product with few columns has rows `row` and `row + 8` of a base tile. The four scales of
    /// these rows lie side by side.
    #[inline(always)]
    fn at_row(&self, which: usize, row: u32) -> u32 {
        let row = row % <Self as CopiedScales>::ROWS;
        self.base + (row / 16 * 32 + row % 8 * 4 + row / 8 % 2 * 2 + which as u32) * 4
    }
}

// SAFETY: `Self` and `Slot` address only the words of the scales.
unsafe impl<const R: usize> SharedLayout for RowScales<R> {
    const BYTES: usize = R * 16 * 2 * 4;
    const ALIGN: usize = 16;
    type Slot<By> = RowScalesSlot<R, By>;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        RowScales { base }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> RowScalesSlot<R, By> {
        RowScalesSlot { base, by: PhantomData }
    }
}

impl<const R: usize> CopiedScales for RowScales<R> {
    const EXIST: bool = true;
    const COUNT: u32 = 2 * Self::ROWS;
    const ROWS: u32 = R as u32 * 16;
    #[inline(always)]
    fn place(i: u32) -> [u32; 2] {
        [i % 2, i / 32 * 16 + i / 2 % 2 * 8 + i / 4 % 8]
    }
    #[inline(always)]
    unsafe fn copy<W: ThreadGroup>(slot: &RowScalesSlot<R, CpAsync<W>>, i: u32, from: u64, present: bool) {
        // SAFETY: the word is a word of this slot, because the caller promises that `i` is below the count;
        // no thread reads it before the copy has landed. The caller promises that `from` may be read.
        unsafe { cp_async_4_or_zero(slot.base + i * 4, from, present) }
    }
}

impl<const R: usize> StageScales for RowScales<R> {
    #[inline(always)]
    fn load(&self, which: usize, row: u32) -> f32 {
        // SAFETY: a word of a readable place.
        f32::from_bits(unsafe { ld_shared_b32(self.at_row(which, row)) })
    }
    #[inline(always)]
    fn load_lane(&self, row: u32) -> [[f32; 2]; 2] {
        // SAFETY: four words of a readable place, from a multiple of four words on.
        let [k, v, k_below, v_below] =
            unsafe { ld_shared_v4_b32(self.at_row(0, row % 8)) }.map(f32::from_bits);
        [[k, k_below], [v, v_below]]
    }
}

// SAFETY: the value accesses no byte.
unsafe impl SharedLayout for () {
    const BYTES: usize = 0;
    const ALIGN: usize = 1;
    type Slot<By> = ();
    #[inline(always)]
    unsafe fn at(_: u32) -> Self {}
    #[inline(always)]
    unsafe fn slot<By>(_: u32) {}
}

impl CopiedScales for () {
    const EXIST: bool = false;
    const COUNT: u32 = 0;
    const ROWS: u32 = 0;
    #[inline(always)]
    fn place(_: u32) -> [u32; 2] {
        [0; 2]
    }
    #[inline(always)]
    unsafe fn copy<W: ThreadGroup>((): &(), _: u32, _: u64, _: bool) {}
}

impl StageScales for () {
    #[inline(always)]
    fn load(&self, _: usize, _: u32) -> f32 {
        1.0
    }
    #[inline(always)]
    fn load_lane(&self, _: u32) -> [[f32; 2]; 2] {
        [[1.0; 2]; 2]
    }
}

// SAFETY: the parts lie one after the other.
unsafe impl<A: SharedLayout, B: SharedLayout> SharedLayout for (A, B) {
    const BYTES: usize = {
        assert!(A::BYTES.is_multiple_of(B::ALIGN), "the second part is misaligned");
        A::BYTES + B::BYTES
    };
    const ALIGN: usize = if A::ALIGN > B::ALIGN { A::ALIGN } else { B::ALIGN };
    type Slot<By> = (A::Slot<By>, B::Slot<By>);
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        // SAFETY: the caller's promise covers both parts, which are consecutive.
        unsafe { (A::at(base), B::at(base + A::BYTES as u32)) }
    }
    #[inline(always)]
    unsafe fn slot<By>(base: u32) -> Self::Slot<By> {
        // SAFETY: the caller's promise covers both parts, which are consecutive.
        unsafe { (A::slot(base), B::slot(base + A::BYTES as u32)) }
    }
}

macro_rules! without_scales {
    ($($element:ty),*) => { $(impl Scaled for $element {
        type Scales<const R: usize> = ();
    })* };
}
without_scales!(F16, Bf16, E4m3, Native<E4m3>);

impl Scaled for Int8 {
    type Scales<const R: usize> = RowScales<R>;
}
