//! Warpgroups with work of their own: one fills rings, the others compute.
use crate::{Block, Place, Warp};
use contract::Kernel;
use cuda_std::registers::{Registers, setmaxnreg_dec, setmaxnreg_inc};
use cuda_std::{barrier, mbarrier, tma};

/// A place in shared memory with two sides, which [`Block::specialise`] hands to warps of different work.
pub trait TwoSided: Place {
    /// How many threads copy, each of a warp of its own.
    const COPIERS: u32;
    /// What a thread that copies holds of it.
    type Producer;
    /// What a warpgroup that computes holds of it.
    type Consumer;
    /// Prepares it for `consumers` warps.
    ///
    /// # Safety
    /// - Called by one thread, before a barrier of the block that comes before any use.
    unsafe fn init(&self, consumers: u32);
    /// The copying side of one warp.
    ///
    /// # Safety
    /// - One thread of each of [`Self::COPIERS`] warps, or of more, has it, and no other. They are numbered
    ///   from 0.
    unsafe fn producer(self, warp: Warp) -> Self::Producer;
    /// The computing side of a warp.
    ///
    /// # Safety
    /// - All warps that `init` was told of have it, and no other.
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer;
}

impl<A: TwoSided, B: TwoSided> TwoSided for (A, B) {
    const COPIERS: u32 = if A::COPIERS > B::COPIERS { A::COPIERS } else { B::COPIERS };
    type Producer = (A::Producer, B::Producer);
    type Consumer = (A::Consumer, B::Consumer);
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0.init(consumers);
            self.1.init(consumers);
        }
    }
    #[inline(always)]
    unsafe fn producer(self, warp: Warp) -> Self::Producer {
        // SAFETY: the caller's promise.
        unsafe { (self.0.producer(warp), self.1.producer(warp)) }
    }
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer {
        // SAFETY: the caller's promise.
        unsafe { (self.0.consumer(warp), self.1.consumer(warp)) }
    }
}

/// A whole, converged warpgroup, one of `W` that compute. Not `Copy`: a product takes it by `&mut`.
pub struct Warpgroup<const W: usize> {
    pub(crate) index: u32,
    /// Counted through those that compute.
    pub(crate) warp: Warp,
    pub(crate) turns: Turns<W>,
}

impl<const W: usize> Warpgroup<W> {
    /// This thread's warp.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        self.warp
    }

    /// The warp's first row of a tile of 64 rows for each warpgroup.
    #[inline(always)]
    pub fn first_row(&self) -> u32 {
        self.warp.index * 16
    }

    /// The warpgroup's.
    #[inline(always)]
    pub(crate) fn first_of_group(&self) -> u32 {
        self.index * 64
    }

    /// One thread of it.
    #[inline(always)]
    pub(crate) fn elected(&self) -> bool {
        self.warp.index.is_multiple_of(4) && self.warp.lane == 0
    }

    /// A barrier of the warpgroup.
    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        const { assert!(W <= 3, "behind those of the turns") }
        // SAFETY: the warpgroup's own barrier; `Warpgroup` stands for 128 converged threads.
        unsafe { barrier::sync_named(8 + self.index, 128) }
    }
}

/// Warpgroups take turns at issuing products, so that one's other work runs beside the others' products.
pub(crate) struct Turns<const W: usize> {
    mine: u32,
    next: u32,
}

impl<const W: usize> Turns<W> {
    /// Barrier 0 is the block's.
    const FIRST: u32 = 1;
    /// The one who waits, and the one who passes.
    const THREADS: u32 = 256;

    #[inline(always)]
    fn of(index: u32) -> Self {
        let next = if index + 1 == W as u32 { 0 } else { index + 1 };
        let turns = Turns { mine: Self::FIRST + index, next: Self::FIRST + next };
        if W > 1 && index == 0 {
            // SAFETY: its own barrier: the first turn is passed to it by itself.
            unsafe { barrier::arrive_named(turns.mine, Self::THREADS) }
        }
        turns
    }

    /// Waits for the warpgroup's turn.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        if W > 1 {
            // SAFETY: a warpgroup waits here, and the one before it passes, once a turn.
            unsafe { barrier::sync_named(self.mine, Self::THREADS) }
        }
    }

    /// Passes the turn on.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        if W > 1 {
            // SAFETY: as above.
            unsafe { barrier::arrive_named(self.next, Self::THREADS) }
        }
    }
}

/// Registers of a thread that copies beside `W` warpgroups.
struct Copying<const W: usize>;
/// Registers of a thread of `W` warpgroups that compute.
struct Computing<const W: usize>;

/// Both.
const fn registers(w: usize) -> [u32; 2] {
    let [copying, computing] = match w {
        2 => [24, 240],
        3 => [32, 160],
        _ => panic!("two or three warpgroups compute"),
    };
    // What a thread starts with: its share of 65,536, in steps of 8.
    let start = 512 / (w as u32 + 1) / 8 * 8;
    assert!(copying + w as u32 * computing <= (w as u32 + 1) * start, "the block has no more registers");
    [copying, computing]
}
impl<const W: usize> Registers for Copying<W> {
    const COUNT: u32 = registers(W)[0];
}
impl<const W: usize> Registers for Computing<W> {
    const COUNT: u32 = registers(W)[1];
}

impl<K: Kernel> Block<K> {
    /// Splits the block into a warpgroup of which one thread runs `copy`, or one of each of as many warps as
    /// share the copies, all of them the same; and `W` warpgroups that run `compute`, with registers that the
    /// first gives back. The block is gone. Those who compute stay until what they have sent is written;
    /// whoever copies need not, since they wait for all that it loads. A thread that copies may end before
    /// `copy` does ([`Producer::load`](crate::Producer::load)): nothing is left to be done with its warp.
    #[inline(always)]
    pub fn specialise<P: TwoSided, const W: usize>(
        self,
        shared: P,
        copy: impl FnOnce(P::Producer),
        compute: impl FnOnce(Warpgroup<W>, P::Consumer),
    ) {
        const {
            assert!(K::THREADS == 128 * (W as u32 + 1), "a warpgroup copies, the others compute");
            let [copying, computing] = registers(W);
            assert!(copying < computing, "the one gives back what the others take");
            assert!(P::COPIERS == 1 || P::COPIERS == 4, "one thread copies, or one of each warp");
        }
        let mut block = self;
        // The same in all lanes, as the assembler must know to keep branches on it uniform.
        let number = block.warp().uniform(block.thread / 32);
        if block.thread == 0 {
            // SAFETY: one thread, and the barrier follows.
            unsafe { shared.init(4 * W as u32) };
            mbarrier::fence_init();
        }
        block.sync();
        let warp = Warp { index: number, lane: block.thread % 32 };
        if number / 4 == 0 {
            // SAFETY: the whole warpgroup takes this branch; it starts with more.
            unsafe { setmaxnreg_dec::<Copying<W>>() };
            // One thread is known by a constant.
            if P::COPIERS > 1 && warp.lane == 0 {
                // SAFETY: one thread of each of four warps.
                copy(unsafe { shared.producer(warp) });
            } else if P::COPIERS == 1 && block.thread == 0 {
                // SAFETY: one thread.
                copy(unsafe { shared.producer(Warp { index: 0, lane: 0 }) });
            }
        } else {
            // SAFETY: the whole warpgroup takes this branch; the first gives back as many.
            unsafe { setmaxnreg_inc::<Computing<W>>() };
            let warp = Warp { index: number - 4, ..warp };
            let index = number / 4 - 1;
            // SAFETY: the other `4 * W` warps.
            compute(Warpgroup { index, warp, turns: Turns::of(index) }, unsafe { shared.consumer(warp) });
            tma::wait_all();
        }
    }
}
