//! Stages of TMA that hold a tile and one f32 per row of the tile.
use crate::Warp;
use crate::beside::{ColumnValues, HeadValues};
use crate::group::sealed::Sealed;
use crate::layout;
use crate::pipeline::StageGuard;
use crate::shared::{SharedLayout, SharedTile};
use crate::tma::{MapKind, TmaTensor, TmaTile};
use contract::Element;
use core::marker::PhantomData;
use cuda_std::tma;
use cuda_std::wgmma::Descriptor;

/// A tile, and one value per row of the tile behind it.
pub struct ValuedTile<E, const R: usize, const C: usize>(PhantomData<E>);

/// The tensor of a [`ValuedTile`], with the values of the tile's rows.
pub struct ValuedTensor<E, const R: usize, const C: usize, M> {
    tile: TmaTensor<E, R, C, M>,
    /// The device address of the first row's value.
    values: u64,
}

impl<E, const R: usize, const C: usize> ValuedTile<E, R, C> {
    /// Bytes of the values.
    const VALUES: u32 = R as u32 * 64;
}

// SAFETY: neither view accesses memory: only TMA, `wgmma` and `StageGuard` do.
unsafe impl<E: Element, const R: usize, const C: usize> SharedLayout for ValuedTile<E, R, C> {
    /// A tile may follow.
    const BYTES: usize =
        SharedTile::<E, R, C>::BYTES + (Self::VALUES as usize).next_multiple_of(layout::PANEL_ALIGN);
    const ALIGN: usize = SharedTile::<E, R, C>::ALIGN;
    type Slot<By> = ();
    #[inline(always)]
    unsafe fn at(_: u32) -> Self {
        ValuedTile(PhantomData)
    }
    #[inline(always)]
    unsafe fn slot<By>(_: u32) {}
}

impl<E, const R: usize, const C: usize> Sealed for ValuedTile<E, R, C> {}
impl<E: Element, const R: usize, const C: usize> TmaTile for ValuedTile<E, R, C> {
    type Tensor<M: MapKind> = ValuedTensor<E, R, C, M>;
    const ROWS: u32 = SharedTile::<E, R, C>::ROWS;
    const LOADED: u32 = SharedTile::<E, R, C>::BYTES as u32 + Self::VALUES;
    const READ_BY_LANES: bool = true;
    #[inline(always)]
    unsafe fn load<M: MapKind>(
        to: u32,
        from: &Self::Tensor<M>,
        column: u32,
        at: M::At,
        full: u32,
        producer: u32,
    ) {
        const { assert!(M::PRODUCERS == 1, "one producer copies the values") }
        // SAFETY: the caller keeps the preconditions. The values exist, and lie at a multiple of 16, as
        // `beside` ensures.
        unsafe {
            from.tile.load(to, column, at, full, producer);
            tma::load_bytes(to + SharedTile::<E, R, C>::BYTES as u32, from.values, Self::VALUES, full)
        }
    }
    #[inline(always)]
    fn descriptor(base: u32) -> Descriptor {
        <SharedTile<E, R, C> as TmaTile>::descriptor(base)
    }
}

impl<E: Element, const R: usize, const C: usize, M: MapKind> TmaTensor<E, R, C, M> {
    /// This tensor with the values of the rows of tile `n`, which must have a row that exists. The padding
    /// has whole tiles.
    // Nothing clamps `n`: with `n.min(..)` here, ten causal kernels spill in the producer warp's loop, which
    // has 24 registers.
    #[inline(always)]
    pub fn beside(&self, values: &HeadValues, n: u32) -> ValuedTensor<E, R, C, M> {
        ValuedTensor { tile: self.copied(), values: values.address(n * R as u32 * 16) }
    }
}

impl<E: Element, const R: usize, const C: usize> StageGuard<'_, ValuedTile<E, R, C>> {
    /// The values of the rows, beside an accumulator whose columns are these rows.
    #[inline(always)]
    pub fn columns(&self, warp: Warp) -> ColumnValues<'_, R> {
        let values = self.first_tile().address() + SharedTile::<E, R, C>::BYTES as u32;
        // SAFETY: the stage has landed, and the guard keeps it.
        unsafe { ColumnValues::at(values, warp) }
    }
}
