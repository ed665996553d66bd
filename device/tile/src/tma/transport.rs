//! The transport TMA: stages that TMA fills.
use crate::copy::Transport;
use crate::group::sealed::Sealed;
use crate::layout;
use crate::tma::MapKind;
use contract::TensorMap;
use core::marker::PhantomData;
use cuda_std::mbarrier;

/// TMA copies tiles box by box, through tensor maps of kind `M`.
pub struct Tma<M = TensorMap>(PhantomData<M>);
/// TMA copies like [`Tma`]'s, with a [`TileInfo`] beside each stage. The producer writes the tile info, and
/// every consumer reads it.
pub struct BroadcastTma<M = TensorMap>(PhantomData<M>);
/// TMA copies elements `F` into a stage, and converter warps convert them there. The producers are the lanes
/// of one warp; the other warps of two warpgroups convert.
pub struct ConvertedTma<F, M = TensorMap>(PhantomData<(F, M)>);

/// Broadcast tile info: eight words about a stage, which the producer passes to the consumers.
pub type TileInfo = [u32; 8];

/// A transport that uses TMA.
pub trait TmaTransport: Transport {
    /// The kind of tensor maps.
    type MapKind: MapKind;
    /// The number of threads that share the boxes of a stage.
    const PRODUCERS: u32 = Self::MapKind::PRODUCERS;
    /// Whether converter warps stand between TMA and the consumers.
    const CONVERTS: bool = false;
}

macro_rules! engines {
    ($($by:ident: $note:expr;)*) => {$(
        impl<M> Sealed for $by<M> {}
        impl<M: MapKind> Transport for $by<M> {
            const ARRIVALS: u32 = 1;
            const BY_THREADS: bool = false;
            const INFO_BYTES: usize = $note;
            /// Another pipeline may follow in shared memory, and it must be aligned.
            const ROUND: usize = layout::PANEL_ALIGN;
        }
        impl<M: MapKind> TmaTransport for $by<M> {
            type MapKind = M;
        }
    )*};
}
engines! {
    Tma: 0;
    BroadcastTma: size_of::<TileInfo>();
}

impl<F, M> ConvertedTma<F, M> {
    /// Number of warps that convert.
    pub(crate) const WARPS: u32 = 7;
}
impl<F, M> Sealed for ConvertedTma<F, M> {}
impl<F, M: MapKind> Transport for ConvertedTma<F, M> {
    const ARRIVALS: u32 = Self::WARPS;
    const BY_THREADS: bool = true;
    /// The mbarrier *landed*, and a word that tells converter warps that no stage follows.
    const INFO_BYTES: usize = 2 * mbarrier::BYTES;
    const ROUND: usize = layout::PANEL_ALIGN;
}
impl<F, M: MapKind> TmaTransport for ConvertedTma<F, M> {
    type MapKind = M;
    const PRODUCERS: u32 = 32;
    const CONVERTS: bool = true;
}
