//! Forward attention for head dims whose O leaves no registers: a work tile has one half of the columns of V
//! and O.
//!
//! The order of work tiles has two heads for each query head, one for each half. Both halves of a tile
//! compute equal scores. The first half stores the LSE.
use crate::hopper::Body;
use crate::hopper::mainloop::Tensors;
use crate::hopper::scheduler::{ForwardOf, MapTile, ParamsOf, Scheduler};
use crate::hopper::wide::one_by_one;
use crate::rows::Rows;
use crate::variant::MaskFn;
use crate::variant::staged::Staged;
use crate::work::{Problem, QueryTile};
use spec::{FwdHopperHalves, HasVariant, Kernel};
use tile::global::GlobalVec;
use tile::mma::WarpgroupCore;
use tile::pipeline::{Consumer, Producer};
use tile::tma::{MapKind, TmaTile};
use tile::{Block, Smem};

/// One half of a tile: `H` base tiles of the columns of V and O. It is the tile of the order.
#[derive(Clone, Copy)]
pub struct HalfTile<T, const H: usize>(T);

impl<T: MapTile, const H: usize> HalfTile<T, H> {
    /// The tile with all columns.
    #[inline(always)]
    fn whole(&self) -> T {
        self.0.with_head(self.0.head() / 2)
    }

    /// 0 or 1.
    #[inline(always)]
    fn half(&self) -> u32 {
        self.0.head() % 2
    }
}

impl<T: MapTile, const H: usize> QueryTile for HalfTile<T, H> {
    const MAY_LACK_KEYS: bool = T::MAY_LACK_KEYS;
    #[inline(always)]
    fn rows(&self, p: &impl Problem, tile_m: u32) -> Rows {
        self.whole().rows(p, tile_m)
    }
    #[inline(always)]
    fn before(&self) -> u32 {
        self.0.before()
    }
}

impl<T: MapTile, const H: usize> MapTile for HalfTile<T, H> {
    type Queries = T::Queries;
    type Keys = <T::Keys as MapKind>::Wide;
    type Params = T::Params;
    const IS_SHARE: bool = true;
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    #[inline(always)]
    fn head(&self) -> u32 {
        self.whole().head()
    }
    #[inline(always)]
    fn with_head(self, head: u32) -> Self {
        HalfTile(self.0.with_head(2 * head + self.half()))
    }
    #[inline(always)]
    fn first_column(&self) -> u32 {
        self.half() * H as u32 * 16
    }
    #[inline(always)]
    fn queries(&self, row: u32) -> <T::Queries as MapKind>::At {
        self.whole().queries(row)
    }
    #[inline(always)]
    fn keys(&self, p: &T::Params, row: u32) -> <T::Keys as MapKind>::At {
        self.0.keys(p, row)
    }
    #[inline(always)]
    fn lse(&self, p: &T::Params) -> GlobalVec {
        self.whole().lse(p).only_if(self.half() == 0)
    }
}

/// Scheduler `S`, whose order has the halves of tiles.
struct InHalves<S, const H: usize>(S);

impl<S: Scheduler, const H: usize> Scheduler for InHalves<S, H> {
    type Tile = HalfTile<S::Tile, H>;
    type By = S::By;

    #[inline(always)]
    fn find(&mut self) -> Option<Self::Tile> {
        self.0.find().map(HalfTile)
    }
    #[inline(always)]
    fn load<T: TmaTile, const N: usize>(
        q: &mut Producer<T, N, S::By>,
        tile: &Self::Tile,
        from: &T::Tensor<<S::Tile as MapTile>::Queries>,
        at: <<S::Tile as MapTile>::Queries as MapKind>::At,
    ) {
        S::load(q, &tile.0, from, at)
    }
    #[inline(always)]
    fn end<T: TmaTile, const N: usize>(
        q: &mut Producer<T, N, S::By>,
        from: &T::Tensor<<S::Tile as MapTile>::Queries>,
    ) {
        S::end(q, from)
    }
    #[inline(always)]
    fn receive<T: TmaTile, const N: usize>(&mut self, q: &mut Consumer<T, N, S::By>) -> Option<Self::Tile> {
        self.0.receive(q).map(HalfTile)
    }
}

impl<
    E: WarpgroupCore,
    Mask: MaskFn,
    const W: usize,
    const N: usize,
    const D: usize,
    const STAGES: usize,
    const ORDERED: bool,
    const H: usize,
> Body for FwdHopperHalves<E, Mask, W, N, D, STAGES, ORDERED, H>
{
    #[inline(always)]
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>> + HasVariant<Mask::Params>>>(
        p: &ParamsOf<S>,
        variant: &Mask::Params,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    ) {
        let tensors = Tensors::<E, E, _, _, N, D, H>::of(&block);
        let numbers = Mask::Staged::tensor::<C, N>(&block);
        one_by_one::<InHalves<S, H>, _, _, Mask, W, N, D, H, STAGES, ORDERED>(
            (p, variant),
            |index, count| InHalves(source(index, count)),
            (&tensors, &numbers),
            block,
            smem,
            |view, so_far, q_tile, group| {
                let column = view.tile.first_column();
                view.store(so_far, group, |o, at, group| {
                    q_tile.store_columns_through(o, &tensors.o, column, at, group)
                })
            },
        );
    }
}
