//! Transports that fill tiles for `wgmma`, and the element types from which they fill them.
use crate::pipeline::{Producer, StageConverter};
use crate::shared::{ConvertTo, SharedTile};
use crate::tma::{ConvertedTma, MapKind, Tma, TmaTensor, TmaTransport};
use crate::{Block, Warp};
use contract::{Bf16, E4m3, Element, F16, Kernel, Native};

/// Columns of a stored tile in base tiles, whatever the columns of the converted tile: 128 of eight bits.
const STORED: usize = crate::pipeline::STORED;

/// A transport that fills tiles of `E`.
pub trait TileTransport<E>: TmaTransport + Sized {
    /// The tensor from which it fills tiles of `R x C` base tiles.
    type Tensor<const R: usize, const C: usize>;

    /// The tensor behind a map in the launch's parameter.
    fn tensor<K: Kernel, const R: usize, const C: usize>(
        block: &Block<K>,
        map: impl FnOnce(&K::Params) -> &<Self::MapKind as MapKind>::Data,
    ) -> Self::Tensor<R, C>;

    /// A producer thread's part of a tile of keys, or of values.
    type Part: Copy;

    /// The producer's warp, if all of its lanes are here, converged.
    #[inline(always)]
    fn whole_warp<const R: usize, const C: usize, const S: usize>(
        _: &Producer<SharedTile<E, R, C>, S, Self>,
    ) -> Option<Warp> {
        None
    }

    /// The producer: finds its part of the tile at `at`. Keys and values share it.
    fn find<const R: usize, const C: usize, const S: usize>(
        by: &Producer<SharedTile<E, R, C>, S, Self>,
        at: <Self::MapKind as MapKind>::At,
    ) -> Self::Part;

    /// The producer: starts the copies of the next stage, from column `column` on.
    fn load<const R: usize, const C: usize, const S: usize>(
        to: &mut Producer<SharedTile<E, R, C>, S, Self>,
        from: &Self::Tensor<R, C>,
        column: u32,
        part: Self::Part,
    );

    /// The producer: says that no stage follows.
    #[inline(always)]
    fn finish<const R: usize, const C: usize, const S: usize>(_: Producer<SharedTile<E, R, C>, S, Self>) {}

    /// A converter warp: converts its share of the next stage. Returns false if no stage follows.
    #[inline(always)]
    fn convert<const R: usize, const C: usize, const S: usize>(
        _: &mut StageConverter<SharedTile<E, R, C>, S, Self>,
    ) -> bool {
        false
    }
}

impl<E: Element, M: MapKind> TileTransport<E> for Tma<M> {
    type Tensor<const R: usize, const C: usize> = TmaTensor<E, R, C, M>;

    #[inline(always)]
    fn tensor<K: Kernel, const R: usize, const C: usize>(
        block: &Block<K>,
        map: impl FnOnce(&K::Params) -> &M::Data,
    ) -> TmaTensor<E, R, C, M> {
        block.tensor(map)
    }

    #[inline(always)]
    fn load<const R: usize, const C: usize, const S: usize>(
        to: &mut Producer<SharedTile<E, R, C>, S, Self>,
        from: &TmaTensor<E, R, C, M>,
        column: u32,
        at: M::At,
    ) {
        to.load_columns(from, column, at)
    }

    type Part = M::At;

    #[inline(always)]
    fn find<const R: usize, const C: usize, const S: usize>(
        _: &Producer<SharedTile<E, R, C>, S, Self>,
        at: M::At,
    ) -> M::At {
        at
    }
}

impl<E: Element, F: ConvertTo<E>, M: MapKind> TileTransport<E> for ConvertedTma<F, M> {
    type Tensor<const R: usize, const C: usize> = TmaTensor<F, R, STORED, M>;

    #[inline(always)]
    fn tensor<K: Kernel, const R: usize, const C: usize>(
        block: &Block<K>,
        map: impl FnOnce(&K::Params) -> &M::Data,
    ) -> TmaTensor<F, R, STORED, M> {
        block.tensor(map)
    }

    #[inline(always)]
    fn whole_warp<const R: usize, const C: usize, const S: usize>(
        producer: &Producer<SharedTile<E, R, C>, S, Self>,
    ) -> Option<Warp> {
        Some(producer.warp)
    }

    #[inline(always)]
    fn load<const R: usize, const C: usize, const S: usize>(
        to: &mut Producer<SharedTile<E, R, C>, S, Self>,
        from: &TmaTensor<F, R, STORED, M>,
        column: u32,
        part: M::Boxes,
    ) {
        to.load(from, column, part)
    }

    type Part = M::Boxes;

    #[inline(always)]
    fn find<const R: usize, const C: usize, const S: usize>(
        by: &Producer<SharedTile<E, R, C>, S, Self>,
        at: M::At,
    ) -> M::Boxes {
        M::find_boxes(at, by.warp)
    }

    #[inline(always)]
    fn finish<const R: usize, const C: usize, const S: usize>(
        producer: Producer<SharedTile<E, R, C>, S, Self>,
    ) {
        producer.finish()
    }

    #[inline(always)]
    fn convert<const R: usize, const C: usize, const S: usize>(
        stages: &mut StageConverter<SharedTile<E, R, C>, S, Self>,
    ) -> bool {
        stages.convert()
    }
}

/// An element type of keys in global memory from which tiles of `E` are filled.
pub trait Fills<E>: Element {
    /// The transport, for tensor maps of kind `M`.
    type By<M: MapKind>: TileTransport<E, MapKind = M>;
}

macro_rules! fills {
    ($($from:ty => $to:ty: $by:ident<$($f:ty)?>;)*) => {$(
        impl Fills<$to> for $from {
            type By<M: MapKind> = $by<$($f,)? M>;
        }
    )*};
}
fills! {
    F16 => F16: Tma<>;
    Bf16 => Bf16: Tma<>;
    Native<E4m3> => F16: ConvertedTma<Native<E4m3>>;
    Native<E4m3> => Bf16: ConvertedTma<Native<E4m3>>;
}
