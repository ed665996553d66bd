//! The mbarrier pipeline: producers fill stages, consumers read them.
//!
//! Stage `s` has two mbarriers. A phase of *full* completes when the stage's copies have landed. The copies
//! themselves arrive, so the producer continues with the next stage at once. A phase of *empty* completes
//! when every consumer thread has released the stage. The file of [`StageGuard`](crate::pipeline::StageGuard)
//! has another pipeline, for TMA and warpgroups.
//!
//! Producer and consumers take the stages in the same order and track rounds through the ring by parity.
//! Round `r` is phase `r` of both mbarriers: the phase of *full* completes when the stage is filled, the
//! phase of *empty* when it is released. In round `r`, the producer waits for the release in round `r - 1`.
//! In round 0, it waits for the phase before phase 0, which PTX treats as complete.
//!
//! Producer and consumers get their stages in a closure. The pipeline performs every step that must follow
//! the closure, so a kernel cannot forget one.
use crate::copy::{CpAsync, GroupTransport, Transport};
use crate::group::{Capability, ThreadGroup, WarpRows, sealed::Sealed};
use crate::pipeline::InFlight;
use crate::shared::{Place, SharedLayout};
use crate::tma::TileInfo;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::mbarrier;

/// `S` empty stages and their mbarriers. `By` is the transport that fills the stages: `cp.async` of one warp,
/// or TMA.
pub struct MbarrierPipeline<T, const S: usize, By> {
    pub(crate) base: u32,
    what: PhantomData<(T, By)>,
}

/// The producer's side of a pipeline: the right to fill stages.
pub struct Producer<T, const S: usize, By> {
    pub(crate) state: PipelineState<T, S>,
    pub(crate) warp: Warp,
    pub(crate) by: PhantomData<By>,
}

impl<T, const S: usize, By> Sealed for Producer<T, S, By> {}
impl<T, const S: usize, By> Capability for Producer<T, S, By> {}

/// The side of a converter warp, between the producers and the consumers of a pipeline: the right to convert
/// stages.
pub struct StageConverter<T, const S: usize, By> {
    pub(crate) state: PipelineState<T, S>,
    /// The warp. Its index counts only converter warps.
    pub(crate) warp: Warp,
    pub(crate) by: PhantomData<By>,
}

/// The consumers' side of a pipeline: the right to read stages.
pub struct Consumer<T, const S: usize, By = CpAsync<Warp>> {
    pub(crate) state: PipelineState<T, S>,
    pub(crate) warp: Warp,
    pub(crate) by: PhantomData<By>,
}

/// The consumer warps of a block, which are all warps but the last.
pub struct Consumers<K> {
    warp: Warp,
    contract: PhantomData<K>,
}

impl<K: Kernel> Consumers<K> {
    /// The number of consumer threads.
    const THREADS: u32 = K::THREADS - <Warp as ThreadGroup>::THREADS;

    /// Divides a tile's `R` row tiles among the consumers, `M` per warp. Returns this warp's rows.
    #[inline(always)]
    pub fn rows<const R: usize, const M: usize>(&self) -> WarpRows<R, M> {
        const {
            assert!(
                R.is_multiple_of(M) && Self::THREADS as usize == R / M * 32,
                "the consumers' warps must share the rows"
            )
        }
        // SAFETY: the consumer warps are exactly the warps that share the rows, and their numbers start at 0.
        unsafe { WarpRows::new(self.warp, self.warp.index) }
    }
}

/// An mbarrier of a stage.
#[derive(Clone, Copy)]
pub(crate) struct Barrier {
    pub(crate) address: u32,
}

impl Barrier {
    /// Waits until the phase with this parity is complete. After the call, all lanes have seen the
    /// completion, and the warp is converged.
    #[inline(always)]
    fn wait(self, parity: u32, warp: Warp) {
        // SAFETY: `specialize` has initialised the mbarrier, and a barrier of the block followed.
        while warp.any(!unsafe { mbarrier::test_wait_parity(self.address, parity) }) {}
    }
}

/// The next stage, and the parity of its round (CUTLASS: `PipelineState`).
pub(crate) struct PipelineState<T, const S: usize> {
    pub(crate) base: u32,
    pub(crate) stage: u32,
    pub(crate) parity: u32,
    what: PhantomData<T>,
}

impl<T: SharedLayout, const S: usize> PipelineState<T, S> {
    #[inline(always)]
    pub(crate) fn first(base: u32) -> Self {
        PipelineState { base, stage: 0, parity: 0, what: PhantomData }
    }
    /// The state of a round whose stage and parity are packed into one number, below `2 * S`.
    #[inline(always)]
    pub(crate) fn packed(base: u32, round: u32) -> Self {
        let parity = (round >= S as u32) as u32;
        PipelineState { base, stage: round - parity * S as u32, parity, what: PhantomData }
    }
    #[inline(always)]
    pub(crate) fn address(&self) -> u32 {
        self.base + self.stage * T::BYTES as u32
    }
    #[inline(always)]
    pub(crate) fn full(&self) -> Barrier {
        Barrier { address: self.base + (S * T::BYTES) as u32 + self.stage * (2 * mbarrier::BYTES) as u32 }
    }
    #[inline(always)]
    pub(crate) fn empty(&self) -> Barrier {
        Barrier { address: self.full().address + mbarrier::BYTES as u32 }
    }
    /// The address of the stage's tile info, which lies behind all barriers.
    #[inline(always)]
    pub(crate) fn info(&self) -> u32 {
        self.base + (S * (T::BYTES + 2 * mbarrier::BYTES)) as u32 + self.stage * size_of::<TileInfo>() as u32
    }
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        let last = self.stage == S as u32 - 1;
        self.parity ^= last as u32;
        self.stage = if last { 0 } else { self.stage + 1 };
    }
}

// SAFETY: the layout has the stages and their barriers, which no thread accesses before `specialize`.
unsafe impl<T: SharedLayout, const S: usize, By: Transport> Place for MbarrierPipeline<T, S, By> {
    const BYTES: usize = {
        assert!(S > 0, "a ring must have a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "a stage must end at a multiple of its alignment");
        (S * (T::BYTES + 2 * mbarrier::BYTES + By::INFO_BYTES)).next_multiple_of(By::ROUND)
    };
    const ALIGN: usize = if T::ALIGN > mbarrier::BYTES { T::ALIGN } else { mbarrier::BYTES };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        MbarrierPipeline { base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport<Group = Warp>> MbarrierPipeline<T, S, By> {
    /// Waits for the copies of `first`, which all warps have started. The last warp then runs `produce`, and
    /// the other warps run `consume`.
    ///
    /// The producer warp stays until its last copies have landed, because PTX does not define the copies of a
    /// thread that has exited. The block is consumed: no barrier of the whole block may follow.
    #[inline(always)]
    pub fn specialize<U: SharedLayout, K: Kernel>(
        self,
        first: InFlight<U, CpAsync<Block<K>>>,
        mut block: Block<K>,
        produce: impl FnOnce(&mut Producer<T, S, By>),
        consume: impl FnOnce(U, &mut Consumer<T, S, By>, Consumers<K>),
    ) {
        let mut state = PipelineState::<T, S>::first(self.base);
        for _ in 0..S {
            let (full, empty) = (state.full(), state.empty());
            // The branch cannot fail, so all lanes reach the barrier together, even with
            // assertions.
            if block.member() == 0 {
                // SAFETY: the bytes behind the stages belonged to `self`; one thread writes them, and the
                // barrier in `land` follows.
                unsafe {
                    mbarrier::init(full.address, By::ARRIVALS);
                    mbarrier::init(empty.address, Consumers::<K>::THREADS);
                }
            }
            state.advance();
        }
        let (landed, warp) = (first.land(&mut block), block.warp());
        let state = PipelineState::first(self.base);
        if warp.index == K::THREADS / 32 - 1 {
            produce(&mut Producer { state, warp, by: PhantomData });
            By::wait_all();
        } else {
            consume(
                landed,
                &mut Consumer { state, warp, by: PhantomData },
                Consumers { warp, contract: PhantomData },
            )
        }
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport> Producer<T, S, By> {
    /// The warp that produces.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        self.warp
    }

    /// Waits until the next stage is empty and starts its copies, which arrive at *full* when they land.
    #[inline(always)]
    pub fn produce(&mut self, copy: impl FnOnce(&T::Slot<By>)) {
        self.state.empty().wait(self.state.parity ^ 1, self.warp);
        // SAFETY: no consumer has a view of the stage: none has had one yet, or all have released the stage.
        copy(&unsafe { T::slot(self.state.address()) });
        // SAFETY: the phase has not ended, because it ends only when these copies have landed.
        unsafe { By::arrive(self.state.full().address) }
        self.state.advance();
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport> Consumer<T, S, By> {
    /// Waits for the next stage, lets `read` use it, and releases it.
    #[inline(always)]
    pub fn consume(&mut self, read: impl FnOnce(&T)) {
        self.state.full().wait(self.state.parity, self.warp);
        // SAFETY: the producer's copies have landed, and every lane has seen this. The producer refills the
        // stage only after all lanes have arrived at *empty*, and the view ends with the call.
        read(&unsafe { T::at(self.state.address()) });
        // SAFETY: every consumer thread arrives once per phase, and the phase cannot end without this
        // arrival.
        unsafe { mbarrier::arrive(self.state.empty().address) }
        self.state.advance();
    }
}
