//! Stages that warpgroups read several times, and refill themselves; tiles that threads wrote for products.
use crate::copy::{GroupTransport, Transport};
use crate::group::Warpgroup;
use crate::group::sealed::Synchronize;
use crate::pipeline::{InFlight, Phased};
use crate::shared::{Place, SharedLayout, SharedTile};
use crate::tma::{MapKind, Tma, TmaTile};
use contract::Element;
use core::marker::PhantomData;
use cuda_std::math::opaque;
use cuda_std::wgmma::Descriptor;
use cuda_std::{mbarrier, tma};

/// `S` stages that TMA fills through tensor maps of kind `M`, with one mbarrier per stage. One warpgroup
/// fills the stages, and all warpgroups read them.
///
/// A producer would wait for the readers by an mbarrier. Here the filling warpgroup is the last reader of
/// each stage, so it needs none: the other warpgroups have read the stage before they passed it their turn.
///
/// The values that go through the stages have numbers: value `n` is in stage `n % S`. All numbers follow from
/// the loop's counter, so the pipeline keeps no state in registers.
pub struct Refilled<T, const S: usize, M> {
    base: u32,
    what: PhantomData<(T, M)>,
}

// SAFETY: the layout has the stages and their mbarriers.
unsafe impl<T: SharedLayout, const S: usize, M: MapKind> Place for Refilled<T, S, M> {
    const BYTES: usize = {
        assert!(S > 0, "there must be a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "a stage must end at a multiple of its alignment");
        (S * (T::BYTES + mbarrier::BYTES)).next_multiple_of(<Tma<M> as Transport>::ROUND)
    };
    const ALIGN: usize = if T::ALIGN > mbarrier::BYTES { T::ALIGN } else { mbarrier::BYTES };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Refilled { base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, M: MapKind> Refilled<T, S, M> {
    /// The address of a stage's mbarrier.
    #[inline(always)]
    fn full(&self, stage: u32) -> u32 {
        self.base + (S * T::BYTES) as u32 + stage * mbarrier::BYTES as u32
    }
}

impl<T: SharedLayout, const S: usize, M: MapKind> Phased for Refilled<T, S, M> {
    #[inline(always)]
    unsafe fn init(&self) {
        for stage in 0..S as u32 {
            // SAFETY: the bytes behind the stages belong to `self`; the caller keeps the other preconditions.
            unsafe { mbarrier::init(self.full(stage), 1) }
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

impl<T: TmaTile, const S: usize, M: MapKind> Refilled<T, S, M> {
    /// Takes value `n`, and does not wait for it. Products wait for it.
    #[inline(always)]
    pub(crate) fn keep(&self, n: u32) -> StageToken<T> {
        // A loop that takes every second value always takes the same stage. If LLVM knew this, it would keep
        // addresses and the descriptors of all k-steps in registers.
        let n = opaque(n);
        let (stage, parity) = (n % S as u32, n / S as u32 % 2);
        let descriptor = T::descriptor(self.base) + stage as u64 * const { (T::BYTES / 16) as u64 };
        StageToken { descriptor, full: self.full(stage), parity, tile: PhantomData }
    }

    /// Starts the copies of value `n`, after all warps of this warpgroup have come. One warpgroup fills all
    /// stages, in the order of the values. `at` are the coordinates of the first row; lanes share the boxes.
    ///
    /// Every warpgroup must have read value `n - S`: this one before the call, the others before they passed
    /// the turn to this one.
    #[inline(always)]
    pub(crate) fn fill<const W: usize>(
        &self,
        n: u32,
        from: &T::Tensor<M>,
        at: M::At,
        group: &mut Warpgroup<W>,
    ) {
        const { assert!(M::PRODUCERS <= 32, "a warp has 32 lanes") }
        let (stage, lane) = (opaque(n) % S as u32, group.warp.lane);
        let full = self.full(stage);
        group.sync();
        if group.warp.index.is_multiple_of(4) {
            // SAFETY: `Phased::init` has initialised the mbarrier. No warp reads the stage, as the caller
            // ensures. All lanes of one warp together copy `T::BYTES` bytes. The phase's only arrival is lane
            // 0's, so the phase does not complete before all copies have landed.
            unsafe {
                if lane == 0 {
                    mbarrier::arrive_expect_tx(full, T::BYTES as u32);
                }
                if M::has_some(&at, T::ROWS, lane) {
                    T::load(self.base + stage * T::BYTES as u32, from, 0, at, full, lane);
                }
            }
            group.warp.sync();
        }
    }
}

/// A stage that a warp has taken before the stage is full. Each product that reads the stage waits for it.
#[derive(Clone, Copy)]
pub(crate) struct StageToken<T> {
    descriptor: Descriptor,
    full: u32,
    parity: u32,
    tile: PhantomData<T>,
}

impl<T> StageToken<T> {
    /// Waits until the stage is full.
    #[inline(always)]
    pub(crate) fn wait(&self) {
        // SAFETY: the mbarrier is initialised as long as the warpgroups' shared memory lives.
        unsafe { mbarrier::wait_parity(self.full, self.parity) }
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
        let StageToken { descriptor, full, parity, .. } = *self;
        StageToken { descriptor, full, parity, tile: PhantomData }
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
    /// Waits for these copies and all other copies of the group's threads, for products to read them.
    #[inline(always)]
    pub(crate) fn publish(self, group: &mut By::Group) -> Published<T> {
        By::wait_all();
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
