//! The transport TMA: stages that TMA fills.
use crate::copy::Transport;
use crate::group::sealed::Sealed;
use crate::layout;
use crate::tma::MapKind;
use contract::TensorMap;
use core::marker::PhantomData;

/// TMA copies tiles box by box, through tensor maps of kind `M`.
pub struct Tma<M = TensorMap>(PhantomData<M>);
/// TMA copies like [`Tma`]'s, with a [`TileInfo`] beside each stage. The producer writes the tile info, and
/// every consumer reads it.
pub struct BroadcastTma<M = TensorMap>(PhantomData<M>);

/// Broadcast tile info: eight words about a stage, which the producer passes to the consumers.
pub type TileInfo = [u32; 8];

/// A transport that uses TMA.
pub trait TmaTransport: Transport {
    /// The kind of tensor maps.
    type MapKind: MapKind;
}

macro_rules! engines {
    ($($by:ident: $note:expr;)*) => {$(
        impl<M> Sealed for $by<M> {}
        impl<M: MapKind> Transport for $by<M> {
            const ARRIVALS: u32 = 1;
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
