//! Copies by TMA, as a way for stages to be filled.
use crate::copy::Transport;
use crate::group::sealed::Sealed;
use crate::layout;
use crate::tma::MapKind;
use contract::TensorMap;
use core::marker::PhantomData;

/// By the copy engine, box by box of tensor maps of one kind.
pub struct Tma<M = TensorMap>(PhantomData<M>);
/// The same, and beside each stage is a note of who has started the copies, for all who read the stage.
pub struct BroadcastTma<M = TensorMap>(PhantomData<M>);

/// What a note says.
pub type TileInfo = [u32; 8];

/// A transport by the copy engine.
pub trait TmaTransport: Transport {
    /// The kind of its maps.
    type MapKind: MapKind;
}

macro_rules! engines {
    ($($by:ident: $note:expr;)*) => {$(
        impl<M> Sealed for $by<M> {}
        impl<M: MapKind> Transport for $by<M> {
            const ARRIVALS: u32 = 1;
            const INFO_BYTES: usize = $note;
            /// So that another ring may follow.
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
