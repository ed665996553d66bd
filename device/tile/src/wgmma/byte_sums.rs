//! Kernels use the sums of products of e4m3 through the trait of this file.
use crate::group::Warpgroup;
use crate::mma::{Acc, ByteFrag, RowVec};
use crate::pipeline::{Consumer, Specialized};
use crate::shared::SharedTile;
use crate::tma::TmaTransport;
use crate::wgmma::{AbtBytes, PartSums, ShortSums};
use contract::{E4m3, FastDiv};

/// The sums of a warpgroup's rows, over `D` base tiles of columns: products of e4m3, of which the tensor core
/// adds at most [`MOST_ROWS`](crate::wgmma::MOST_ROWS).
pub trait ByteSums<const D: usize>: Sized {
    /// Shared memory of the sums of `W` warpgroups.
    type Place<const W: usize>: Specialized;

    /// Sums of zero. `divisor` is one of the kernel's parameters.
    fn new<const W: usize>(
        place: <Self::Place<W> as Specialized>::Consumer,
        divisor: FastDiv,
        group: &Warpgroup<W>,
    ) -> Self;

    /// Multiplies each row by its factor.
    fn scale_rows(&mut self, by: &RowVec<1>);

    /// Returns the sums, and starts new ones from zero.
    fn take(&mut self) -> Acc<1, D>;

    /// Room for the product of a stage, which the next two functions take.
    type Room<'s, const K: usize>
    where
        Self: 's;

    /// Makes this room.
    fn room<const K: usize>(&mut self) -> Self::Room<'_, K>;

    /// Adds the product of `a` and the next stage of `b`.
    fn add<const W: usize, const K: usize, const S: usize, By: TmaTransport>(
        room: Self::Room<'_, K>,
        operands: (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, By>),
        group: &mut Warpgroup<W>,
    );

    /// Runs the product `first`, and adds the product of `a` and the next stage of `b`, in one ping-pong
    /// turn. The closures are those of [`Warpgroup::overlap`].
    fn overlap<
        By: TmaTransport,
        ByB: TmaTransport,
        State,
        R,
        T,
        const W: usize,
        const K: usize,
        const S: usize,
    >(
        first: AbtBytes<'_, K, D, W, S, By>,
        room: Self::Room<'_, K>,
        operands: (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, ByB>),
        group: &mut Warpgroup<W>,
        state: &mut State,
        meanwhile: impl FnOnce(&mut State, &mut Acc<1, K>) -> (bool, R),
        then: impl FnOnce(&mut State, &Acc<1, K>, &mut Self, R, bool) -> T,
    ) -> T;
}

/// The sums of products with `D` base tiles of columns.
pub trait HasSums<const D: usize> {
    /// The kind of sums.
    type Sums: ByteSums<D>;
}
impl HasSums<4> for E4m3 {
    type Sums = ShortSums<4>;
}
impl HasSums<8> for E4m3 {
    type Sums = ShortSums<8>;
}
impl HasSums<16> for E4m3 {
    type Sums = PartSums<16>;
}
