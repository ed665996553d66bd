//! The keys of a work item on a latent cache: all keys of its sequence, which TMA copies, or the keys of its
//! query's list, which the warpgroups gather. Keys of eight bits are gathered in both cases, and converted.
use crate::decode::batch::Batch;
use crate::decode::latents::listed;
use crate::decode::schedule::{Item, in_window};
use crate::variant::MaskFn;
use attention_tile::{
    CacheRows, FoundPages, FoundSlots, InFoundPages, PackedRows, Page, PagedRow, RowsOfStage,
};
use core::marker::PhantomData;
use core::ops::Range;
use cuda_std::math::opaque;
use spec::{DType, DecodeParams, E4m3, Kernel, MaskKind, MlaHopperParams, SparseParams};
use tile::copy::CpAsync;
use tile::group::Refillers;
use tile::mma::{Acc, RowBounds, WarpgroupCore};
use tile::pipeline::{Boxes, ByteRow, ByteRows, FromRows, Gathered, Refill, Settle};
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
    /// The scale of scores, to base 2, with the scale of the keys.
    pub scale_log2: f32,
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

/// Keys that are stored as operands.
pub struct Operands;
/// Keys that are stored as rows of type `S`, which has eight bits.
pub struct Bytes<S>(PhantomData<S>);

/// The parameters of a kernel on a latent cache with keys of form `S`, whose stages have a left part and a
/// right part. Operands have type `E`.
pub trait Latents<E: WarpgroupCore, S>: Batch + Sized + 'static {
    /// The transport of left parts.
    type Left: Settle<Left<E>>;
    /// The transport of right parts.
    type Right: Settle<Right<E>>;
    /// The keys in global memory, if tensor maps describe them.
    type Tensors;
    /// The keys behind the launch's tensor maps.
    fn tensors<C: Kernel<Params = Self>>(block: &Block<C>) -> Self::Tensors;
    /// The value of a stored number divided by the value of the operand's number, if each latent head has one
    /// scale.
    const FACTOR: Option<f32> = None;

    /// The result that each lane of a warp looks up for a stage, long before its copies.
    type Found: Copy;
    /// Looks up the rows of stage `n`.
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Self::Found;
    /// The source of the left part of stage `n`.
    fn left(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors,
        n: u32,
        found: Self::Found,
        warp: Warp,
    ) -> impl Refill<Left<E>, Self::Left>;
    /// The source of the right part of stage `n`.
    fn right(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors,
        n: u32,
        found: Self::Found,
        warp: Warp,
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
fn seen<P, Mask: MaskFn>(stages: &Stages<'_, P>, row: u32) -> Range<i32> {
    in_window::<Mask>(stages.p, stages.queries.unpack(row)[0], stages.item.keys)
}

/// Hides the keys of stage `n` behind the last one that a row sees. Each row sees at least the keys that
/// earlier rows see.
#[inline(always)]
fn hide_later<P, Mask: MaskFn>(stages: &Stages<'_, P>, s: &mut Acc<1, N>, n: u32, warp: Warp) {
    let key = stages.key(n);
    if (key + KEYS) as i32 > seen::<P, Mask>(stages, 0).end {
        let (warp, first) = (warp.forget_lane(), warp.index() % 4 * 16);
        let end = |row| seen::<P, Mask>(stages, first + row).end - key as i32;
        s.keep_before(&RowBounds::new(end, warp));
    }
}

impl<E: WarpgroupCore> Latents<E, Operands> for MlaHopperParams {
    type Left = Tma<LeftMap>;
    type Right = Tma<RightMap>;
    type Tensors = (TmaTensor<E, N, HALF, LeftMap>, TmaTensor<E, N, REST, RightMap>);
    #[inline(always)]
    fn tensors<C: Kernel<Params = Self>>(block: &Block<C>) -> Self::Tensors {
        (block.tensor(|p| &p.k), block.tensor(|p| &p.k))
    }

    /// In each lane another page.
    type Found = Page;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Page {
        row(stages, n).find(warp.forget_lane())
    }
    #[inline(always)]
    fn left(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors,
        n: u32,
        page: Page,
        _: Warp,
    ) -> impl Refill<Left<E>, Self::Left> {
        Boxes { from: &keys.0, at: row(stages, n).within(page) }
    }
    #[inline(always)]
    fn right(
        stages: &Stages<'_, Self>,
        keys: &Self::Tensors,
        n: u32,
        page: Page,
        _: Warp,
    ) -> impl Refill<Right<E>, Self::Right> {
        Boxes { from: &keys.1, at: row(stages, n).within(page) }
    }

    type Kept = ();
    #[inline(always)]
    fn keep(_: &Stages<'_, Self>, _: Page, _: Warp) {}
    #[inline(always)]
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, (): (), warp: Warp) {
        hide_later::<Self, Mask>(stages, s, n, warp)
    }
}

impl<E: WarpgroupCore> Latents<E, Operands> for SparseParams {
    type Left = CpAsync<Refillers>;
    type Right = CpAsync<Refillers>;
    type Tensors = ();
    #[inline(always)]
    fn tensors<C: Kernel<Params = Self>>(_: &Block<C>) {}

    type Found = FoundSlots;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> FoundSlots {
        Looked::find(stages, n, warp)
    }
    #[inline(always)]
    fn left(
        stages: &Stages<'_, Self>,
        (): &(),
        _: u32,
        slots: FoundSlots,
        _: Warp,
    ) -> impl Refill<Left<E>, Self::Left> {
        Gathered(listed(stages.all, stages.item).tile::<0>(slots))
    }
    #[inline(always)]
    fn right(
        stages: &Stages<'_, Self>,
        (): &(),
        _: u32,
        slots: FoundSlots,
        _: Warp,
    ) -> impl Refill<Right<E>, Self::Right> {
        Gathered(listed(stages.all, stages.item).tile::<RIGHT>(slots))
    }

    type Kept = [u32; 2];
    #[inline(always)]
    fn keep(stages: &Stages<'_, Self>, slots: FoundSlots, warp: Warp) -> [u32; 2] {
        Looked::keep(stages, slots, warp)
    }
    #[inline(always)]
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, kept: [u32; 2], warp: Warp) {
        Looked::hide::<Mask>(stages, s, n, kept, warp)
    }
}

/// Parameters of kernels whose lanes look up the rows of a stage, for copies by threads. [`Latents`] has the
/// meaning of the functions.
pub trait Looked: Batch + Sized + 'static {
    /// The result that each lane of a warp looks up for a stage.
    type Found: Copy;
    /// Looks up the rows of stage `n`.
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Self::Found;
    /// The rows of stage `n`.
    fn rows<'p>(stages: &Stages<'p, Self>, n: u32, found: Self::Found, warp: Warp) -> RowsOfStage<'p>;
    /// The bits that a warp keeps of its stage.
    type Kept: Copy + Default;
    /// Returns these bits.
    fn keep(stages: &Stages<'_, Self>, found: Self::Found, warp: Warp) -> Self::Kept;
    /// Hides the keys of stage `n` that rows do not see.
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, kept: Self::Kept, warp: Warp);
}

impl<E: WarpgroupCore, S: ByteRow<E>, P: Looked> Latents<E, Bytes<S>> for P
where
    S: 'static,
{
    type Left = ByteRows<S, 0>;
    type Right = ByteRows<S, HALF>;
    type Tensors = ();
    #[inline(always)]
    fn tensors<C: Kernel<Params = Self>>(_: &Block<C>) {}
    const FACTOR: Option<f32> = if matches!(S::DTYPE, DType::E4m3) { Some(S::FACTOR) } else { None };

    type Found = P::Found;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> Self::Found {
        P::find(stages, n, warp)
    }
    #[inline(always)]
    fn left(
        stages: &Stages<'_, Self>,
        (): &(),
        n: u32,
        found: Self::Found,
        warp: Warp,
    ) -> impl Refill<Left<E>, Self::Left> {
        FromRows(P::rows(stages, n, found, warp))
    }
    #[inline(always)]
    fn right(
        stages: &Stages<'_, Self>,
        (): &(),
        n: u32,
        found: Self::Found,
        warp: Warp,
    ) -> impl Refill<Right<E>, Self::Right> {
        FromRows(P::rows(stages, n, found, warp))
    }

    type Kept = P::Kept;
    #[inline(always)]
    fn keep(stages: &Stages<'_, Self>, found: Self::Found, warp: Warp) -> Self::Kept {
        P::keep(stages, found, warp)
    }
    #[inline(always)]
    fn hide<Mask: MaskFn>(
        stages: &Stages<'_, Self>,
        s: &mut Acc<1, N>,
        n: u32,
        kept: Self::Kept,
        warp: Warp,
    ) {
        P::hide::<Mask>(stages, s, n, kept, warp)
    }
}

/// The keys of a work item's sequence.
#[inline(always)]
fn pages<'p>(stages: &Stages<'p, DecodeParams>) -> CacheRows<'p, E4m3, D> {
    let Item { sequence, kv_head, keys, .. } = *stages.item;
    let [keys, _] = CacheRows::new(&stages.p.cache, sequence, kv_head, keys);
    keys
}

impl Looked for DecodeParams {
    type Found = FoundPages;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> FoundPages {
        pages(stages).find(stages.key(n), warp.forget_lane())
    }
    #[inline(always)]
    fn rows<'p>(stages: &Stages<'p, Self>, n: u32, found: FoundPages, warp: Warp) -> RowsOfStage<'p> {
        pages(stages).rows_in(stages.key(n), found, warp.forget_lane())
    }
    type Kept = ();
    #[inline(always)]
    fn keep(_: &Stages<'_, Self>, _: FoundPages, _: Warp) {}
    #[inline(always)]
    fn hide<Mask: MaskFn>(stages: &Stages<'_, Self>, s: &mut Acc<1, N>, n: u32, (): (), warp: Warp) {
        hide_later::<Self, Mask>(stages, s, n, warp)
    }
}

impl Looked for SparseParams {
    type Found = FoundSlots;
    #[inline(always)]
    fn find(stages: &Stages<'_, Self>, n: u32, warp: Warp) -> FoundSlots {
        listed(stages.all, stages.item).find(stages.key(n), warp.forget_lane())
    }
    #[inline(always)]
    fn rows<'p>(stages: &Stages<'p, Self>, _: u32, slots: FoundSlots, warp: Warp) -> RowsOfStage<'p> {
        listed(stages.all, stages.item).rows(slots, warp)
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
