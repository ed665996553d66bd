//! The layout of shared tiles for TMA, which writes them, and for `wgmma`, which reads them: panels,
//! swizzles, descriptors.
use crate::group::sealed::Sealed;
use crate::layout;
use crate::shared::{SharedLayout, SharedTile, SharedTiles};
use crate::tma::{MapKind, Panels, TmaTensor};
use contract::Element;
use cuda_std::wgmma::{Descriptor, Swizzle};

impl<E: Element, const R: usize, const C: usize> SharedTile<E, R, C> {
    /// Number of columns per panel.
    pub(crate) const PANEL_COLUMNS: u32 =
        layout::panel_chunks(Self::ROW_CHUNKS) * layout::CHUNK / E::BYTES as u32;
    /// The number of panels.
    pub(crate) const PANELS: u32 = C as u32 * 16 / Self::PANEL_COLUMNS;
    /// Bytes per panel.
    pub(crate) const PANEL_BYTES: u32 = Self::ROWS * layout::row_bytes(Self::ROW_CHUNKS);
    /// The tile as a sequence of panels.
    pub(crate) const IN_PANELS: Panels = Panels {
        first: 0,
        count: Self::PANELS,
        columns: Self::PANEL_COLUMNS,
        rows: Self::ROWS,
        row_bytes: layout::row_bytes(Self::ROW_CHUNKS),
    };
    /// The swizzle as a value of `cuda_std::wgmma`.
    const SWIZZLE: Swizzle = match layout::panel_chunks(Self::ROW_CHUNKS) {
        8 => Swizzle::Bytes128,
        _ => Swizzle::Bytes64,
    };
    /// Converts a distance in bytes to the units of descriptors.
    pub(crate) const fn bytes(bytes: u32) -> u64 {
        (bytes / 16) as u64
    }

    /// The distance from a tile's descriptor to the descriptor of k-step `k` if k runs along columns, which
    /// is 32 bytes within a panel's rows.
    #[inline(always)]
    pub(crate) const fn along_rows(k: usize) -> u64 {
        let steps = Self::PANEL_COLUMNS / 16;
        Self::bytes(k as u32 / steps * Self::PANEL_BYTES + k as u32 % steps * 16 * E::BYTES as u32)
    }

    /// The distance from a tile's descriptor to the descriptor of k-step `k` if k runs along rows, which is
    /// 16 rows in every panel.
    #[inline(always)]
    pub(crate) const fn along_columns(k: usize) -> u64 {
        Self::bytes(k as u32 * 16 * layout::row_bytes(Self::ROW_CHUNKS))
    }
}

/// A stage that TMA can fill: one tile, or several tiles of one shape.
pub trait TmaTile: SharedLayout + Sealed {
    /// The tensor of the tiles, which is described by a map of kind `M`.
    type Tensor<M: MapKind>;
    /// Number of rows per tile.
    const ROWS: u32;
    /// Number of bytes that the copies to a stage write.
    const LOADED: u32 = Self::BYTES as u32;
    /// Whether a row has more panels than the compilers may unroll.
    const IS_WIDE: bool = false;
    /// Whether lanes load from a stage. All lanes must then have loaded before a warp releases the stage.
    const READ_BY_LANES: bool = false;
    /// Starts one producer's share of the copies to the stage at `to`. `column` is the stage's first column,
    /// and `at` are the coordinates of its first row.
    ///
    /// # Safety
    /// - The producers own the stage, and the phase of `full` expects [`TmaTile::LOADED`] bytes.
    unsafe fn load<M: MapKind>(
        to: u32,
        from: &Self::Tensor<M>,
        column: u32,
        at: M::At,
        full: u32,
        producer: u32,
    );
    /// The descriptor of the first tile of a pipeline at `base`.
    fn descriptor(base: u32) -> Descriptor;
}

macro_rules! boxes {
    ($($tiles:ident<$($count:ident)?>: $n:expr;)*) => {$(
        impl<E, const R: usize, const C: usize, $(const $count: usize)?> Sealed
            for $tiles<E, R, C, $($count)?>
        {
        }
        impl<E: Element, const R: usize, const C: usize, $(const $count: usize)?> TmaTile
            for $tiles<E, R, C, $($count)?>
        {
            type Tensor<M: MapKind> = TmaTensor<E, R, C, M>;
            const ROWS: u32 = SharedTile::<E, R, C>::ROWS;
            const IS_WIDE: bool = SharedTile::<E, R, C>::IN_PANELS.is_wide();
            #[inline(always)]
            unsafe fn load<M: MapKind>(
                to: u32,
                from: &Self::Tensor<M>,
                column: u32,
                at: M::At,
                full: u32,
                producer: u32,
            ) {
                for tile in 0..$n {
                    let at = M::down(at, tile * Self::ROWS);
                    let to = to + tile * SharedTile::<E, R, C>::BYTES as u32;
                    // SAFETY: the caller keeps the preconditions.
                    unsafe { from.load(to, column, at, full, producer) }
                }
            }
            #[inline(always)]
            fn descriptor(base: u32) -> Descriptor {
                Descriptor::new(base, SharedTile::<E, R, C>::PANEL_BYTES, SharedTile::<E, R, C>::SWIZZLE)
            }
        }
    )*};
}
boxes! {
    SharedTile<>: 1;
    SharedTiles<COUNT>: COUNT as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::F16;

    /// Checks that each k-step's descriptor points to the first chunk of the k-step, where TMA has written
    /// it.
    fn check<const R: usize, const C: usize>() {
        type Tile<const R: usize, const C: usize> = SharedTile<F16, R, C>;
        for k in 0..C {
            assert_eq!(Tile::<R, C>::along_rows(k) * 16, Tile::<R, C>::offset(0, 2 * k as u32) as u64);
        }
        for k in 0..R {
            assert_eq!(Tile::<R, C>::along_columns(k) * 16, Tile::<R, C>::offset(16 * k as u32, 0) as u64);
        }
        let panels = Tile::<R, C>::PANELS;
        assert_eq!((panels * Tile::<R, C>::PANEL_BYTES) as usize, Tile::<R, C>::BYTES);
        assert_eq!(panels * Tile::<R, C>::PANEL_COLUMNS, C as u32 * 16);
        for panel in 0..panels {
            let first = panel * Tile::<R, C>::PANEL_COLUMNS / 8;
            assert_eq!(Tile::<R, C>::offset(0, first), panel * Tile::<R, C>::PANEL_BYTES);
        }
    }

    #[test]
    fn descriptors_lead_to_what_tma_wrote() {
        check::<4, 4>();
        check::<8, 4>();
        check::<6, 6>();
        check::<8, 8>();
        check::<7, 12>();
        check::<5, 16>();
        check::<2, 32>();
    }

    #[test]
    fn a_descriptor_has_its_fields() {
        let address = 0x2_4400;
        let Descriptor(wide) = SharedTile::<F16, 8, 8>::descriptor(address);
        assert_eq!(
            (wide >> 62, wide >> 32 & 0x3fff, wide >> 16 & 0x3fff, wide & 0x3fff),
            (1, 64, 1024, 0x2440)
        );
        let Descriptor(narrow) = SharedTile::<F16, 8, 6>::descriptor(address);
        assert_eq!((narrow >> 62, narrow >> 32 & 0x3fff, narrow >> 16 & 0x3fff), (2, 32, 512));
    }
}
