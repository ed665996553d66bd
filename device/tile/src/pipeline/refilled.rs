//! Stages that warpgroups read several times, and refill themselves; tiles that threads wrote for products.
use crate::copy::{CpAsync, GroupTransport, TileWalk, Transport};
use crate::group::sealed::{Sealed, Synchronize};
use crate::group::{Refillers, ThreadGroup, Warpgroup};
use crate::layout;
use crate::pipeline::{InFlight, Phased};
use crate::shared::{Place, SharedLayout, SharedTile};
use crate::tma::{MapKind, Tma, TmaTile};
use contract::Element;
use core::marker::PhantomData;
use cuda_std::math::opaque;
use cuda_std::wgmma::Descriptor;
use cuda_std::{mbarrier, tma};

/// `S` stages that transport `By` fills, with one mbarrier per stage. One warpgroup fills the stages, and all
/// warpgroups read them.
///
/// A producer would wait for the readers by an mbarrier. Here the filling warpgroup is the last reader of
/// each stage, so it needs none: the other warpgroups have read the stage before they passed it their turn.
///
/// The values that go through the stages have numbers: value `n` is in stage `n % S`. All numbers follow from
/// the loop's counter, so the pipeline keeps no state in registers.
pub struct Refilled<T, const S: usize, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

// SAFETY: the layout has the stages and their mbarriers.
unsafe impl<T: SharedLayout, const S: usize, By: Transport> Place for Refilled<T, S, By> {
    const BYTES: usize = {
        assert!(S > 0, "there must be a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "a stage must end at a multiple of its alignment");
        (S * (T::BYTES + mbarrier::BYTES)).next_multiple_of(layout::PANEL_ALIGN)
    };
    const ALIGN: usize = if T::ALIGN > mbarrier::BYTES { T::ALIGN } else { mbarrier::BYTES };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Refilled { base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, By> Refilled<T, S, By> {
    /// The address of a stage's mbarrier.
    #[inline(always)]
    fn full(&self, stage: u32) -> u32 {
        self.base + (S * T::BYTES) as u32 + stage * mbarrier::BYTES as u32
    }
}

impl<T: SharedLayout, const S: usize, By: Transport> Phased for Refilled<T, S, By> {
    #[inline(always)]
    unsafe fn init(&self) {
        for stage in 0..S as u32 {
            // SAFETY: the bytes behind the stages belong to `self`; the caller keeps the other preconditions.
            unsafe { mbarrier::init(self.full(stage), By::ARRIVALS) }
        }
    }
    #[inline(always)]
    unsafe fn end(&self) {
        for stage in 0..S as u32 {
            // SAFETY: the caller keeps the preconditions.
            unsafe { mbarrier::inval(self.full(stage)) }
        }
    }
}

impl<T: TmaTile, const S: usize, By: Transport> Refilled<T, S, By> {
    /// Takes value `n`, and does not wait for it. Products wait for it.
    #[inline(always)]
    pub(crate) fn keep(&self, n: u32) -> StageToken<T> {
        // A loop that takes every second value always takes the same stage. If LLVM knew this, it would keep
        // addresses and the descriptors of all k-steps in registers.
        let n = opaque(n);
        let (stage, parity) = (n % S as u32, n / S as u32 % 2);
        let descriptor = T::descriptor(self.base) + stage as u64 * const { (T::BYTES / 16) as u64 };
        let (full, by_threads) = (self.full(stage), By::BY_THREADS);
        StageToken { descriptor, full, parity, by_threads, tile: PhantomData }
    }

    /// Starts the copies of value `n`, after all warps of this warpgroup have come. One warpgroup fills all
    /// stages, in the order of the values.
    ///
    /// Every warpgroup must have read value `n - S`: this one before the call, the others before they passed
    /// the turn to this one.
    #[inline(always)]
    pub(crate) fn fill<const W: usize>(&self, n: u32, from: impl Refill<T, By>, group: &mut Warpgroup<W>) {
        let stage = opaque(n) % S as u32;
        let (full, mut refillers) = (self.full(stage), group.refillers());
        refillers.sync_group();
        // SAFETY: `Phased::init` has initialised the mbarrier. No warp reads the stage, as the caller
        // ensures. Whoever waits for this phase has waited for the previous one.
        unsafe { from.start(self.base + stage * T::BYTES as u32, full, &refillers) }
    }
}

impl<T: SharedLayout, const S: usize, By: Settle<T>> Refilled<T, S, By> {
    /// Makes value `n` what products read, if the transport copies it in another form. The warpgroup that
    /// fills stages calls this function once for each value, before it fills the next one.
    #[inline(always)]
    pub(crate) fn settle(&self, n: u32, group: &Refillers) {
        if By::CONVERTS {
            let stage = opaque(n) % S as u32;
            // SAFETY: `Phased::init` has initialised the mbarrier, and no product reads the stage before its
            // phase ends.
            unsafe { By::settle(self.base + stage * T::BYTES as u32, self.full(stage), group) }
        }
    }
}

/// A transport that can fill stages of `T`.
pub trait Settle<T>: Transport {
    /// Whether stages must be settled.
    const CONVERTS: bool = false;
    /// Waits for the copies of a stage, and makes it what products read. All warps of the warpgroup that
    /// copied the stage call this function.
    ///
    /// # Safety
    /// - This warpgroup has started the copies of the stage, and its phase of `full` has not ended. No
    ///   product reads the stage before that.
    #[inline(always)]
    unsafe fn settle(_stage: u32, _full: u32, _group: &Refillers) {}
}
impl<T, M: MapKind> Settle<T> for Tma<M> {}
impl<T, W: ThreadGroup> Settle<T> for CpAsync<W> {}

/// A source of values for [`Refilled`] stages, which transport `By` copies.
pub trait Refill<T, By>: Sealed {
    /// Starts the copies of a value. All warps of a warpgroup call this function.
    ///
    /// # Safety
    /// - The stage at `to` may be written, and no thread reads it before it has waited for the phase of
    ///   `full`.
    /// - `full` is initialised with `By::ARRIVALS`, and its phase has no arrival yet.
    unsafe fn start(self, to: u32, full: u32, group: &Refillers);
}

/// A tile of a tensor, which TMA copies: the coordinates of its first row. The lanes of the warpgroup's first
/// warp share the boxes.
pub struct Boxes<'p, T: TmaTile, M: MapKind> {
    /// The tensor.
    pub from: &'p T::Tensor<M>,
    /// The coordinates of the tile's first row.
    pub at: M::At,
}

impl<T: TmaTile, M: MapKind> Sealed for Boxes<'_, T, M> {}
impl<T: TmaTile, M: MapKind> Refill<T, Tma<M>> for Boxes<'_, T, M> {
    #[inline(always)]
    unsafe fn start(self, to: u32, full: u32, group: &Refillers) {
        const { assert!(M::PRODUCERS <= 32, "a warp has 32 lanes") }
        let (warp, Boxes { from, at }) = (group.warp(), self);
        if warp.index.is_multiple_of(4) {
            // SAFETY: the caller keeps the preconditions. All lanes of one warp together copy `T::BYTES`
            // bytes. The phase's only arrival is lane 0's, so the phase does not complete before all copies
            // have landed.
            unsafe {
                if warp.lane == 0 {
                    mbarrier::arrive_expect_tx(full, T::BYTES as u32);
                }
                if M::has_some(&at, T::ROWS, warp.lane) {
                    T::load(to, from, 0, at, full, warp.lane);
                }
            }
            warp.sync();
        }
    }
}

/// A tile whose chunks the threads of a warpgroup copy: the next tile of this walk.
pub struct Gathered<Walk>(pub Walk);

impl<Walk> Sealed for Gathered<Walk> {}
impl<E: Element, const R: usize, const C: usize, Walk: TileWalk<E, R, C, Refillers>>
    Refill<SharedTile<E, R, C>, CpAsync<Refillers>> for Gathered<Walk>
{
    #[inline(always)]
    unsafe fn start(mut self, to: u32, full: u32, group: &Refillers) {
        // SAFETY: the caller keeps the preconditions. Each thread arrives once, when its copies have landed.
        unsafe {
            SharedTile::<E, R, C>::slot(to).copy_edge(&mut self.0, group);
            CpAsync::<Refillers>::arrive(full)
        }
    }
}

/// A stage that a warp has taken before the stage is full. Each product that reads the stage waits for it.
#[derive(Clone, Copy)]
pub(crate) struct StageToken<T> {
    descriptor: Descriptor,
    full: u32,
    parity: u32,
    /// [`Transport::BY_THREADS`]: a constant.
    by_threads: bool,
    tile: PhantomData<T>,
}

impl<T> StageToken<T> {
    /// Waits until the stage is full, and products may read it.
    #[inline(always)]
    pub(crate) fn wait(&self) {
        // SAFETY: the mbarrier is initialised as long as the warpgroups' shared memory lives.
        unsafe { mbarrier::wait_parity(self.full, self.parity) }
        if self.by_threads {
            // Copies by threads write in another proxy than products read.
            tma::fence_proxy_async();
        }
    }

    /// The descriptor of the stage.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.descriptor
    }
}

impl<E: Element, const R: usize, const C: usize> StageToken<SharedTile<E, R, C>> {
    /// The stage's first columns, which are whole panels.
    #[inline(always)]
    pub(crate) fn first_columns<const P: usize>(&self) -> StageToken<SharedTile<E, R, P>> {
        const { SharedTile::<E, R, C>::has_first_columns::<P>() }
        let StageToken { descriptor, full, parity, by_threads, .. } = *self;
        StageToken { descriptor, full, parity, by_threads, tile: PhantomData }
    }
}

/// A tile that threads have written, and that products may read.
pub(crate) struct Published<T> {
    base: u32,
    tile: PhantomData<T>,
}

impl<T: TmaTile> Published<T> {
    /// The descriptor of the tile.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Descriptor {
        T::descriptor(self.base)
    }
}

impl<T: SharedLayout, By: GroupTransport> InFlight<T, By> {
    /// Waits for these copies, for products to read them. If `alone`, copies that the group's threads have
    /// started since, in no group of copies, may stay in flight.
    #[inline(always)]
    pub(crate) fn publish(self, alone: bool, group: &mut By::Group) -> Published<T> {
        match alone {
            true => By::wait_all_but(0),
            false => By::wait_all(),
        }
        // Copies by threads write in another proxy than products read.
        tma::fence_proxy_async();
        group.sync_group();
        Published { base: self.base, tile: PhantomData }
    }
}

impl Warpgroup<2> {
    /// The first element in warpgroup 0, the second element in warpgroup 1.
    #[inline(always)]
    pub(crate) fn own<T>(&self, [first, second]: [T; 2]) -> T {
        if self.index == 0 { first } else { second }
    }
}
