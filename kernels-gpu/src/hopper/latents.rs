//! The keys of a work item on a latent cache: all keys of its sequence, which TMA copies, or the keys of its
//! query's list, which the warpgroups gather.
use crate::decode::batch::Batch;
use crate::decode::latents::listed;
use crate::decode::schedule::{Item, in_window};
use crate::variant::MaskFn;
use attention_tile::{FoundSlots, InFoundPages, PackedRows, Page, PagedRow};
use core::ops::Range;
use cuda_std::math::opaque;
use spec::{DecodeParams, Kernel, MaskKind, MlaHopperParams, SparseParams};
use tile::copy::{CpAsync, Transport};
use tile::group::Refillers;
use tile::mma::{Acc, RowBounds, WarpgroupCore};
use tile::pipeline::{Boxes, Gathered, Refill};
use tile::shared::SharedTile;
use tile::tma::{Tma, TmaTensor};
use tile::{Block, Warp};

/// Base tiles of columns of keys.
pub const D: usize = 36;
/// Base tiles of columns of one warpgroup's values, and of a stage's left part.
pub const HALF: usize = 16;
/// Base tiles of columns of a stage's right part.
pub const REST: usize = D - HALF;
/// Base tiles of keys per stage.
pub const N: usize = 4;
/// Keys per stage.
pub const KEYS: u32 = N as u32 * 16;

/// The left part of a stage in shared memory.
pub type Left<E> = SharedTile<E, N, HALF>;
/// The right part of a stage in shared memory.
pub type Right<E> = SharedTile<E, N, REST>;
/// The stages of a work item.
pub struct Stages<'p, P> {
    /// The kernel's parameters.
    pub all: &'p P,
    /// The parameters of all decode kernels.
    pub p: &'p DecodeParams,
    /// The work item.
    pub item: &'p Item,
    /// The work item's rows of Q.
    pub queries: PackedRows<'p>,
    /// Number of stages. A split without a key has one stage, whose keys do not exist.
    pub count: u32,
}

impl<P> Stages<'_, P> {
    /// The first key of stage `n`. LLVM would keep one register for each stage that a loop mentions.
    #[inline(always)]
    pub fn key(&self, n: u32) -> u32 {
        (self.item.split + opaque(n) * self.item.splits) * KEYS
    }
}

/// The parameters of a kernel on a latent cache, whose stages have a left part and a right part.
pub trait Latents: Batch + Sized + 'static {
    /// The transport of left parts.
    type Left: Transport;
    /// The transport of right parts.
    type Right: Transport;
    /// The keys in global memory, if tensor maps describe them.
    type Tensors<E>;
    /// The keys behind the launch's tensor maps.
    fn tensors<E: WarpgroupCore, C: Kernel<Params = Self>>(block: &Block<C>) -> Self::Tensors<E>;

    /// The result that each lane of a warp looks up for a stage, long before its copies.
    type Found: Copy;
    /// Looks up the rows of stage `n`.
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Self::Found;
    /// The source of the left part of stage `n`.
    fn left<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors<E>,
        n: u32,
        found: Self::Found,
    ) -> impl Refill<Left<E>, Self::Left>;
    /// The source of the right part of stage `n`.
    fn right<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors<E>,
        n: u32,
        found: Self::Found,
    ) -> impl Refill<Right<E>, Self::Right>;

    /// The bits that a warp keeps of its stage from the copies to the scores.
    type Kept: Copy + Default;
    /// Returns the bits that the warp keeps of a stage.
    fn keep(stages: &Stages<'_, Self>, found: Self::Found, warp: Warp) -> Self::Kept;
    /// Hides the keys of stage `n` that rows do not see.
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, kept: Self::Kept, warp: Warp);
}

/// The first column of right parts.
const RIGHT: u32 = HALF as u32 * 16;
/// The tensor maps of a stage's two parts.
type LeftMap = InFoundPages<0>;
type RightMap = InFoundPages<RIGHT>;

/// The first of stage `n`'s keys.
#[inline(always)]
fn row(stages: &Stages<'_, MlaHopperParams>, n: u32) -> PagedRow {
    let Item { sequence, kv_head, keys, .. } = *stages.item;
    PagedRow::new(&stages.p.cache, stages.all.boxes, sequence, kv_head, stages.key(n), keys)
}

/// The keys that row `row` sees.
#[inline(always)]
fn seen<Mask: MaskFn>(stages: &Stages<'_, MlaHopperParams>, row: u32) -> Range<i32> {
    in_window::<Mask>(stages.p, stages.queries.unpack(row)[0], stages.item.keys)
}

impl Latents for MlaHopperParams {
    type Left = Tma<LeftMap>;
    type Right = Tma<RightMap>;
    type Tensors<E> = (TmaTensor<E, N, HALF, LeftMap>, TmaTensor<E, N, REST, RightMap>);
    #[inline(always)]
    fn tensors<E: WarpgroupCore, C: Kernel<Params = Self>>(block: &Block<C>) -> Self::Tensors<E> {
        (block.tensor(|p| &p.k), block.tensor(|p| &p.k))
    }

    /// In each lane another page.
    type Found = Page;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Page {
        row(stages, n).find(warp.forget_lane())
    }
    #[inline(always)]
    fn left<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors<E>,
        n: u32,
        page: Page,
    ) -> impl Refill<Left<E>, Self::Left> {
        Boxes { from: &keys.0, at: row(stages, n).within(page) }
    }
    #[inline(always)]
    fn right<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors<E>,
        n: u32,
        page: Page,
    ) -> impl Refill<Right<E>, Self::Right> {
        Boxes { from: &keys.1, at: row(stages, n).within(page) }
    }

    type Kept = ();
    #[inline(always)]
    fn keep(_: &Stages<'_, Self>, _: Page, _: Warp) {}
    /// Each row sees at least the keys that earlier rows see.
    #[inline(always)]
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, (): (), warp: Warp) {
        let key = stages.key(n);
        if (key + KEYS) as i32 > seen::<Mask>(stages, 0).end {
            let (warp, first) = (warp.forget_lane(), warp.index() % 4 * 16);
            let end = |row| seen::<Mask>(stages, first + row).end - key as i32;
            s.keep_before(&RowBounds::new(end, warp));
        }
    }
}

impl Latents for SparseParams {
    type Left = CpAsync<Refillers>;
    type Right = CpAsync<Refillers>;
    type Tensors<E> = ();
    #[inline(always)]
    fn tensors<E: WarpgroupCore, C: Kernel<Params = Self>>(_: &Block<C>) {}

    type Found = FoundSlots;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> FoundSlots {
        listed(stages.all, stages.item).find(stages.key(n), warp.forget_lane())
    }
    #[inline(always)]
    fn left<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        (): &(),
        _: u32,
        slots: FoundSlots,
    ) -> impl Refill<Left<E>, Self::Left> {
        Gathered(listed(stages.all, stages.item).tile::<0>(slots))
    }
    #[inline(always)]
    fn right<E: WarpgroupCore>(
        stages: &Stages<'_, Self>,
        (): &(),
        _: u32,
        slots: FoundSlots,
    ) -> impl Refill<Right<E>, Self::Right> {
        Gathered(listed(stages.all, stages.item).tile::<RIGHT>(slots))
    }

    /// A bit for each key: whether its slot names a row.
    type Kept = [u32; 2];
    #[inline(always)]
    fn keep(stages: &Stages<'_, Self>, slots: FoundSlots, warp: Warp) -> [u32; 2] {
        listed(stages.all, stages.item).named(slots, warp)
    }
    #[inline(always)]
    fn hide<Mask: MaskFn>(_: &Stages<'_, Self>, s: &mut Acc<1, N>, _: u32, named: [u32; 2], warp: Warp) {
        const { assert!(matches!(Mask::KIND, MaskKind::Full), "a query's list is its mask") }
        if named != [!0; 2] {
            s.keep_columns(named, warp.forget_lane());
        }
    }
}
