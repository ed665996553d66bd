//! Stages that one warp fills and the others read, handed over by mbarriers.
//!
//! Stage `s` has two barriers. *Full* ends a phase when what fills the stage has landed: the copies
//! themselves arrive, so that the producer goes on to the next stage at once. *Empty* ends one when every
//! thread of every consumer has left the stage. (Where the copy engine fills stages, and warpgroups read
//! them, that is in `engine.rs`.)
//!
//! Both sides take the stages in the same order and count rounds through the ring by their parity. The `r`-th
//! round's filling is phase `r` of *full*, its leaving phase `r` of *empty*. The producer waits for the
//! leaving of the round before, and in the first round for a phase before the first, which counts as ended.
//!
//! Each side gets its right to the stages in a closure: what must happen when it is done with a stage, or
//! with all of them, happens behind the closure, and cannot be forgotten.
use crate::copy::{CpAsync, GroupTransport, Transport};
use crate::group::{ThreadGroup, WarpRows};
use crate::pipeline::InFlight;
use crate::shared::{Place, SharedLayout};
use crate::tma::TileInfo;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::mbarrier;

/// `S` stages, none filled, and behind them the barriers that hand them over. They are filled `By` one
/// warp, or the copy engine.
pub struct MbarrierPipeline<T, const S: usize, By> {
    pub(crate) base: u32,
    what: PhantomData<(T, By)>,
}

/// The right to fill stages.
pub struct Producer<T, const S: usize, By> {
    pub(crate) state: PipelineState<T, S>,
    pub(crate) warp: Warp,
    pub(crate) by: PhantomData<By>,
}

/// The right to read stages that were filled `By`.
pub struct Consumer<T, const S: usize, By = CpAsync<Warp>> {
    pub(crate) state: PipelineState<T, S>,
    pub(crate) warp: Warp,
    pub(crate) by: PhantomData<By>,
}

/// The warps of the block that read stages: all but the last.
pub struct Consumers<K> {
    warp: Warp,
    contract: PhantomData<K>,
}

impl<K: Kernel> Consumers<K> {
    /// How many threads they are.
    const THREADS: u32 = K::THREADS - <Warp as ThreadGroup>::THREADS;

    /// They share a tile's `R` row tiles, `M` a warp: this warp's rows.
    #[inline(always)]
    pub fn rows<const R: usize, const M: usize>(&self) -> WarpRows<R, M> {
        const {
            assert!(
                R.is_multiple_of(M) && Self::THREADS as usize == R / M * 32,
                "the consumers' warps must share the rows"
            )
        }
        // SAFETY: there are as many consumers as warps that share the rows, and they are numbered from 0.
        unsafe { WarpRows::new(self.warp, self.warp.index) }
    }
}

/// A barrier of a stage.
#[derive(Clone, Copy)]
pub(crate) struct Barrier {
    pub(crate) address: u32,
}

impl Barrier {
    /// Waits for the end of the phase of this parity. Every lane has seen it, and the warp leaves together.
    #[inline(always)]
    fn wait(self, parity: u32, warp: Warp) {
        // SAFETY: `specialize` has initialised it, and a barrier of the block came after.
        while warp.any(!unsafe { mbarrier::test_wait_parity(self.address, parity) }) {}
    }
}

/// The stage that comes next, and in which round.
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
    /// Where what stands beside the stage is: behind all barriers, by 32 bytes each.
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

// SAFETY: the stages and their barriers, which nobody touches before `specialize`.
unsafe impl<T: SharedLayout, const S: usize, By: Transport> Place for MbarrierPipeline<T, S, By> {
    const BYTES: usize = {
        assert!(S > 0, "a ring has a stage");
        assert!(T::BYTES.is_multiple_of(T::ALIGN), "stages follow each other");
        (S * (T::BYTES + 2 * mbarrier::BYTES + By::INFO_BYTES)).next_multiple_of(By::ROUND)
    };
    const ALIGN: usize = if T::ALIGN > mbarrier::BYTES { T::ALIGN } else { mbarrier::BYTES };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        MbarrierPipeline { base, what: PhantomData }
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport<Group = Warp>> MbarrierPipeline<T, S, By> {
    /// Lands `first`, what all warps have started copying, and splits the block into its last warp, which
    /// `produce`s the stages, and the others, which `consume` them. The producer stays until its last copies
    /// have landed: PTX does not say what becomes of the copies of a thread that is gone. No barrier of the
    /// whole block comes after: the block is gone.
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
            // Nothing in the branch can fail: with assertions, too, all lanes come to the barrier together.
            if block.member() == 0 {
                // SAFETY: the bytes behind the stages, which `self` stood for; one thread, and the barrier in
                // `land` follows.
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
    /// The warp that copies.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        self.warp
    }

    /// Waits until the next stage is empty and starts its copies. They hand it over when they have landed.
    #[inline(always)]
    pub fn produce(&mut self, copy: impl FnOnce(&T::Slot<By>)) {
        self.state.empty().wait(self.state.parity ^ 1, self.warp);
        // SAFETY: no consumer has a view of the stage: none has had one yet, or all have said that they left
        // it.
        copy(&unsafe { T::slot(self.state.address()) });
        // SAFETY: the phase has not ended: this is its filling.
        unsafe { By::arrive(self.state.full().address) }
        self.state.advance();
    }
}

impl<T: SharedLayout, const S: usize, By: GroupTransport> Consumer<T, S, By> {
    /// Waits for the next stage, and leaves it when it has been `read`.
    #[inline(always)]
    pub fn consume(&mut self, read: impl FnOnce(&T)) {
        self.state.full().wait(self.state.parity, self.warp);
        // SAFETY: the producer's copies have landed, which every lane has seen; it refills the stage only
        // after all have arrived at *empty*, and the view ends with the call.
        read(&unsafe { T::at(self.state.address()) });
        // SAFETY: every consumer thread arrives once a phase, which cannot have ended without it.
        unsafe { mbarrier::arrive(self.state.empty().address) }
        self.state.advance();
    }
}
