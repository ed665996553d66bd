//! The mbarrier pipeline for TMA and `wgmma`: TMA fills stages, warpgroups read them.
//!
//! A phase of *full* completes when TMA has written the stage. The phase has one arrival, which announces the
//! byte count. If several producer threads share a stage, the first of them arrives. A phase of *empty*
//! completes when every warp of every warpgroup has released the stage.
//!
//! `wgmma` reads these stages, by descriptor, so no stage appears as a [`SharedTile`]. Lanes read only the
//! values beside a tile ([`crate::tma::ValuedTile`]). A stage's descriptor is the pipeline's descriptor plus
//! an offset, one 64-bit addition. A computation from the address would cost three more instructions per
//! product.
use crate::Warp;
use crate::pipeline::mbarrier::PipelineState;
use crate::pipeline::{Consumer, MbarrierPipeline, Producer, Specialized, StageConverter};
use crate::shared::{SharedLayout, SharedTile, SharedTiles};
use crate::tma::{BroadcastTma, MapKind, TileInfo, Tma, TmaTile, TmaTransport};
use contract::Element;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use cuda_std::memory::{ld_shared_v4_b32_if, st_shared_v4_b32};
use cuda_std::wgmma::Descriptor;
use cuda_std::{mbarrier, thread};

/// A stage that several products read. Dropping the guard releases the stage. A guard that is passed to
/// `mem::forget` never releases its stage, and the producer then waits forever.
pub struct StageGuard<'c, T: TmaTile> {
    descriptor: Descriptor,
    empty: u32,
    warp: Warp,
    consumer: PhantomData<&'c T>,
}

impl<E: Element, const R: usize, const C: usize, const COUNT: usize>
    StageGuard<'_, SharedTiles<E, R, C, COUNT>>
{
    /// The descriptor of a tile of the stage.
    #[inline(always)]
    pub(crate) fn tile(&self, index: u32) -> Descriptor {
        self.descriptor + index as u64 * SharedTile::<E, R, C>::bytes(SharedTile::<E, R, C>::BYTES as u32)
    }

    /// The shared address of a tile of the stage.
    #[inline(always)]
    pub(crate) fn address(&self, index: u32) -> u32 {
        self.tile(index).address()
    }
}

impl<T: TmaTile> StageGuard<'_, T> {
    /// The descriptor of the stage's first tile.
    #[inline(always)]
    pub(crate) fn first_tile(&self) -> Descriptor {
        self.descriptor
    }
}

impl<T: TmaTile> Drop for StageGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if T::READ_BY_LANES {
            self.warp.sync();
        }
        // SAFETY: each warp arrives once per phase, and the phase cannot end without this arrival. All lanes
        // have read what they read.
        unsafe { mbarrier::arrive_if(self.empty, self.warp.lane == 0) }
    }
}

impl<T: TmaTile, const S: usize, By: TmaTransport> Specialized for MbarrierPipeline<T, S, By> {
    type Producer = Producer<T, S, By>;
    type Converter = StageConverter<T, S, By>;
    type Consumer = Consumer<T, S, By>;
    const PRODUCERS: u32 = By::PRODUCERS;
    const CONVERTS: bool = By::CONVERTS;
    const IS_WIDE: bool = T::IS_WIDE;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        let mut state = PipelineState::<T, S>::first(self.base);
        for _ in 0..S {
            // SAFETY: the bytes behind the stages belong to `self`; the caller keeps the other preconditions.
            unsafe {
                mbarrier::init(state.full().address, By::ARRIVALS);
                mbarrier::init(state.empty().address, consumers);
                if By::CONVERTS {
                    state.init_landed();
                }
            }
            state.advance();
        }
    }
    #[inline(always)]
    unsafe fn producer(self, warp: Warp) -> Self::Producer {
        Producer { state: PipelineState::first(self.base), warp, by: PhantomData }
    }
    #[inline(always)]
    unsafe fn converter(self, warp: Warp) -> Self::Converter {
        StageConverter { state: PipelineState::first(self.base), warp, by: PhantomData }
    }
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer {
        Consumer { state: PipelineState::first(self.base), warp, by: PhantomData }
    }
}

impl<T: TmaTile, const S: usize, By: TmaTransport> Producer<T, S, By> {
    /// Waits until the next stage is empty, lets `write_info` write the stage's tile info, and starts this
    /// thread's share of the stage's copies.
    #[inline(always)]
    fn fill<M: MapKind>(
        &mut self,
        from: &T::Tensor<M>,
        (column, at): (u32, M::At),
        write_info: impl FnOnce(&PipelineState<T, S>),
    ) where
        By: TmaTransport<MapKind = M>,
    {
        let (full, producer) = (self.state.full().address, self.warp.index);
        if M::has_some(&at, T::ROWS, producer) {
            // SAFETY: `specialize` has initialised both mbarriers. All consumers have left the stage, or none
            // has had it yet: the phase before the first counts as ended. All producers together copy
            // `T::LOADED` bytes. The phase's only arrival is the first producer's, so the phase does not
            // complete before all copies have landed, even if another producer is ahead.
            unsafe {
                mbarrier::wait_parity(self.state.empty().address, self.state.parity ^ 1);
                if producer == 0 {
                    write_info(&self.state);
                    mbarrier::arrive_expect_tx(full, T::LOADED);
                }
                T::load(self.state.address(), from, column, at, full, producer);
            }
        } else if producer < M::PRODUCERS {
            // No consumer waits for this thread, so the thread cannot wait for the stage's consumers either.
            // The thread could therefore miss a phase and mistake a later phase for this one. For this
            // reason, it takes no later stage.
            thread::exit()
        }
        self.state.advance();
    }
}

impl<T: TmaTile, const S: usize, M: MapKind> Producer<T, S, Tma<M>> {
    /// Waits until the next stage is empty, then starts its copies. `at` are the coordinates of the first
    /// row.
    ///
    /// If several producers share the copies, a producer without a box in this stage exits. All pipelines
    /// should therefore have boxes of the same size: a later stage with smaller boxes would never be
    /// complete.
    #[inline(always)]
    pub fn load(&mut self, from: &T::Tensor<M>, at: M::At) {
        self.load_columns(from, 0, at)
    }

    /// [`Producer::load`] of the columns from `column` on.
    #[inline(always)]
    pub fn load_columns(&mut self, from: &T::Tensor<M>, column: u32, at: M::At) {
        self.fill(from, (column, at), |_| ())
    }
}

impl<T: TmaTile, const S: usize, M: MapKind> Producer<T, S, BroadcastTma<M>> {
    /// Waits until the next stage is empty, writes its tile info, then starts its copies. `at` are the
    /// coordinates of the first row.
    #[inline(always)]
    pub fn load(&mut self, info: TileInfo, from: &T::Tensor<M>, at: M::At) {
        self.fill(from, (0, at), |state| write(state, info))
    }
}

/// Writes the tile info beside an empty stage, before this thread's arrival at *full*.
#[inline(always)]
fn write<T: TmaTile, const S: usize>(state: &PipelineState<T, S>, [a, b, c, d, e, f, g, h]: TileInfo) {
    // SAFETY: the bytes of the tile info lie behind the barriers, and are aligned to 16. Every reader has
    // released the stage.
    unsafe {
        st_shared_v4_b32(state.info(), [a, b, c, d]);
        st_shared_v4_b32(state.info() + 16, [e, f, g, h]);
    }
}

impl<T: TmaTile, const S: usize, M: MapKind> Consumer<T, S, BroadcastTma<M>> {
    /// Waits for the next stage and returns its tile info, but does not take the stage.
    #[inline(always)]
    pub fn info(&mut self) -> TileInfo {
        self.wait_full();
        let reads = self.warp.lane == 0;
        // SAFETY: the producer wrote the words before the arrival that ended the phase. The producer writes
        // them again only after this warp has left the stage, which the warp has not taken yet. The lane that
        // arrives at *empty* is the lane that reads.
        let [a, b] = [0, 16].map(|half| unsafe { ld_shared_v4_b32_if(self.state.info() + half, reads) });
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]].map(|word| self.warp.uniform(word))
    }
}

impl<T: TmaTile, const S: usize, By: TmaTransport> Consumer<T, S, By> {
    /// Waits for the next stage.
    #[inline(always)]
    pub fn wait(&mut self) -> StageGuard<'_, T> {
        self.wait_full();
        // If there is one stage, its descriptor is the same at every wait. LLVM would then compute the
        // descriptors of all k-steps before the loop, and keep them in registers.
        let descriptor = if S == 1 { self.descriptor().opaque() } else { self.descriptor() };
        let empty = self.state.empty().address;
        self.state.advance();
        StageGuard { descriptor, empty, warp: self.warp, consumer: PhantomData }
    }

    /// [`Consumer::wait`] for twins, whose guards outlive the call.
    #[inline(always)]
    pub(super) fn take<'s>(&mut self) -> StageGuard<'s, T>
    where
        T: 's,
    {
        let StageGuard { descriptor, empty, warp, .. } = *ManuallyDrop::new(self.wait());
        StageGuard { descriptor, empty, warp, consumer: PhantomData }
    }

    /// Waits until the next stage is full.
    #[inline(always)]
    pub(crate) fn wait_full(&self) {
        // SAFETY: `specialize` has initialised the mbarrier.
        unsafe { mbarrier::wait_parity(self.state.full().address, self.state.parity) }
    }

    /// The descriptor of the next stage's first tile.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Descriptor {
        T::descriptor(self.state.base) + self.state.stage as u64 * (T::BYTES / 16) as u64
    }

    /// Releases the next stage, which this warp no longer reads.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        // SAFETY: each warp arrives once per phase, and the phase cannot end without this arrival.
        unsafe { mbarrier::arrive_if(self.state.empty().address, self.warp.lane == 0) }
        self.state.advance();
    }
}
