//! Warp specialization on Hopper, with one producer warpgroup and two or three consumer warpgroups. If stages
//! are converted, there is one more warpgroup, which converts.
use crate::group::{PingPong, Warpgroup};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::registers::{Registers, setmaxnreg_dec, setmaxnreg_inc};
use cuda_std::{mbarrier, thread, tma};

/// Shared memory with a producer side and a consumer side. [`Block::specialize`] gives the two sides to
/// different warps.
pub trait Specialized: Place {
    /// The number of producer threads. Each of these threads is in another warp; if there are converter
    /// warps, all of these threads are lanes of one warp.
    const PRODUCERS: u32;
    /// Whether converter warps stand between producers and consumers.
    const CONVERTS: bool = false;
    /// The number of keepers: threads of the producer warpgroup, each in another warp, that neither copy nor
    /// convert. Parts of shared memory that have keepers have the same number of them.
    const KEEPERS: u32 = 0;
    /// Whether stages are so wide ([`crate::tma::TmaTile::IS_WIDE`]) that they have few rows.
    const IS_WIDE: bool = false;
    /// The producer side, for a producer thread.
    type Producer;
    /// The side of a converter warp, or of a keeper.
    type Converter;
    /// The consumer side, for a consumer warp.
    type Consumer;
    /// Initialises the memory for `consumers` consumer warps.
    ///
    /// # Safety
    /// - One thread calls this function, and a block barrier follows before any use.
    unsafe fn init(&self, consumers: u32);
    /// The producer side for producer thread `warp.index`, which is lane `warp.lane` of its warp.
    ///
    /// # Safety
    /// - At least [`Self::PRODUCERS`] threads, numbered from 0, have the producer side, and no other thread
    ///   has it.
    unsafe fn producer(self, warp: Warp) -> Self::Producer;
    /// The side of converter warp `warp`, or of keeper `warp.index`.
    ///
    /// # Safety
    /// - If there are converter warps, seven warps, numbered from 0, have this side; otherwise only the
    ///   keepers, numbered from 0.
    unsafe fn converter(self, warp: Warp) -> Self::Converter;
    /// The consumer side for warp `warp`.
    ///
    /// # Safety
    /// - The consumer warps that `init` counted have the consumer side, and no other warp has it.
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer;
}

impl Specialized for () {
    const PRODUCERS: u32 = 1;
    type Producer = ();
    type Converter = ();
    type Consumer = ();
    #[inline(always)]
    unsafe fn init(&self, _: u32) {}
    #[inline(always)]
    unsafe fn producer(self, _: Warp) -> Self::Producer {}
    #[inline(always)]
    unsafe fn converter(self, _: Warp) -> Self::Converter {}
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> Self::Consumer {}
}

impl<A: Specialized, B: Specialized> Specialized for (A, B) {
    const PRODUCERS: u32 = if A::PRODUCERS > B::PRODUCERS { A::PRODUCERS } else { B::PRODUCERS };
    const CONVERTS: bool = A::CONVERTS || B::CONVERTS;
    const KEEPERS: u32 = {
        assert!(A::KEEPERS == 0 || B::KEEPERS == 0 || A::KEEPERS == B::KEEPERS, "both need the same keepers");
        if A::KEEPERS > B::KEEPERS { A::KEEPERS } else { B::KEEPERS }
    };
    const IS_WIDE: bool = A::IS_WIDE || B::IS_WIDE;
    type Producer = (A::Producer, B::Producer);
    type Converter = (A::Converter, B::Converter);
    type Consumer = (A::Consumer, B::Consumer);
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            self.0.init(consumers);
            self.1.init(consumers);
        }
    }
    #[inline(always)]
    unsafe fn producer(self, warp: Warp) -> Self::Producer {
        // SAFETY: the caller keeps the preconditions.
        unsafe { (self.0.producer(warp), self.1.producer(warp)) }
    }
    #[inline(always)]
    unsafe fn converter(self, warp: Warp) -> Self::Converter {
        // SAFETY: the caller keeps the preconditions.
        unsafe { (self.0.converter(warp), self.1.converter(warp)) }
    }
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer {
        // SAFETY: the caller keeps the preconditions.
        unsafe { (self.0.consumer(warp), self.1.consumer(warp)) }
    }
}

/// Registers per thread of the producer warpgroup, if there are `W` consumer warpgroups.
struct Copying<P, const W: usize>(PhantomData<P>);
/// Registers per thread of each of `W` consumer warpgroups.
struct Computing<P, const W: usize>(PhantomData<P>);

/// Registers per thread of a warpgroup that only converts.
struct Converting;
impl Registers for Converting {
    const COUNT: u32 = 32;
}

/// Number of warpgroups that only convert. A whole warp produces if stages are converted.
const fn converting(producers: u32) -> u32 {
    if producers > 4 { 1 } else { 0 }
}

/// Registers per thread of the producer warpgroup and of the consumer warpgroups. Several producer threads
/// look up the place of each box, for which 24 registers are too few. The scores of a wide stage take few
/// registers of the consumers.
const fn registers(w: usize, producers: u32, is_wide: bool) -> [u32; 2] {
    let [copying, computing] = match (w, producers, is_wide) {
        (2, 1, _) => [24, 240],
        (2, 4, false) => [40, 232],
        (2, 4, true) => [56, 224],
        (2, ..) => [48, 216],
        (3, ..) => [32, 160],
        _ => panic!("there must be two or three consumer warpgroups"),
    };
    // A thread starts with an equal part of 65,536 registers, rounded down to a multiple of 8.
    let (w, converting) = (w as u32, converting(producers));
    let (groups, all) = (w + 1 + converting, copying + converting * Converting::COUNT + w * computing);
    assert!(all <= groups * (512 / groups / 8 * 8), "a block has fewer registers");
    [copying, computing]
}
impl<P: Specialized, const W: usize> Registers for Copying<P, W> {
    const COUNT: u32 = registers(W, P::PRODUCERS, P::IS_WIDE)[0];
}
impl<P: Specialized, const W: usize> Registers for Computing<P, W> {
    const COUNT: u32 = registers(W, P::PRODUCERS, P::IS_WIDE)[1];
}

impl<K: Kernel> Block<K> {
    /// Divides the block into a producer warpgroup and `W` consumer warpgroups. Consumer warpgroups run
    /// `compute`. One thread of each of [`Specialized::PRODUCERS`] warps of the producer warpgroup runs
    /// `copy`. If stages are converted, all lanes of the producer warpgroup's first warp run `copy`. Its
    /// other three warps and the four warps of one more warpgroup run `convert`. These warpgroups release
    /// registers, and the consumer warpgroups take them. Without converter warps, [`Specialized::KEEPERS`]
    /// threads of the producer warpgroup's other warps run `convert`.
    ///
    /// The block is consumed. Consumer warpgroups stay until their stores are written. Producers need not
    /// stay, because the consumers wait for every load. A producer thread may even exit within `copy`
    /// ([`Producer::load`](crate::pipeline::Producer::load)).
    #[inline(always)]
    pub fn specialize<P: Specialized, const W: usize>(
        self,
        shared: P,
        copy: impl FnOnce(P::Producer),
        convert: impl Fn(P::Converter),
        compute: impl FnOnce(Warpgroup<W>, P::Consumer),
    ) {
        const {
            let others = 1 + converting(P::PRODUCERS);
            assert!(
                K::THREADS == 128 * (W as u32 + others),
                "W warpgroups compute, the others copy and convert"
            );
            let [copying, computing] = registers(W, P::PRODUCERS, P::IS_WIDE);
            assert!(copying < computing, "producers must have fewer registers than consumers");
            let most = if P::CONVERTS { 32 } else { 4 };
            assert!(P::PRODUCERS == 1 || P::PRODUCERS == most, "one thread copies, or one of each warp");
            assert!(P::KEEPERS == 0 || P::PRODUCERS == 1, "keepers stand beside one producer");
            assert!(P::KEEPERS < 4, "each keeper has a warp of the producer warpgroup");
        }
        let mut block = self;
        // The number is the same in all lanes. ptxas must know this, so that branches on the number stay
        // uniform.
        let number = block.warp().uniform(block.thread / 32);
        if block.thread == 0 {
            // SAFETY: one thread calls this, and the barrier follows.
            unsafe { shared.init(4 * W as u32) };
            mbarrier::fence_init();
        }
        block.sync();
        let lane = if P::CONVERTS { thread::lane_id() } else { block.thread % 32 };
        let warp = Warp { index: number, lane };
        let converting = converting(P::PRODUCERS);
        if converting == 1 && number / 4 == 1 {
            // SAFETY: the whole warpgroup takes this branch, and it starts with more registers. These are
            // four of the seven warps that convert.
            convert(unsafe {
                setmaxnreg_dec::<Converting>();
                shared.converter(Warp { index: number - 1, ..warp })
            });
        } else if number / 4 == 0 {
            // SAFETY: the whole warpgroup takes this branch, and it starts with more registers.
            unsafe { setmaxnreg_dec::<Copying<P, W>>() };
            // If only one thread produces, its warp and lane are constants.
            if P::CONVERTS && number == 0 {
                // SAFETY: the lanes of one warp call this.
                copy(unsafe { shared.producer(Warp { index: warp.lane, ..warp }) });
            } else if P::CONVERTS {
                // SAFETY: the other three warps that convert call this.
                convert(unsafe { shared.converter(Warp { index: number - 1, ..warp }) });
            } else if P::PRODUCERS > 1 && warp.lane == 0 {
                // SAFETY: one thread of each of four warps calls this.
                copy(unsafe { shared.producer(warp) });
            } else if P::PRODUCERS == 1 && block.thread == 0 {
                // SAFETY: one thread calls this.
                copy(unsafe { shared.producer(Warp { index: 0, lane: 0 }) });
            } else if P::KEEPERS > 0 && warp.lane == 0 && number <= P::KEEPERS {
                // SAFETY: one thread of each of these warps calls this.
                convert(unsafe { shared.converter(Warp { index: number - 1, lane: 0 }) });
            }
        } else {
            // SAFETY: the whole warpgroup takes this branch, and the other warpgroups have released enough
            // registers.
            unsafe { setmaxnreg_inc::<Computing<P, W>>() };
            // Beside converter warps, consumers have few registers: ptxas spilled 60 bytes for `%laneid`, and
            // 12 bytes for a warp's number that is the same in all lanes.
            let own = if P::CONVERTS { block.thread / 32 } else { number };
            let warp = Warp { index: own - 4 * (1 + converting), lane: block.thread % 32 };
            let index = number / 4 - (1 + converting);
            // SAFETY: these are the other `4 * W` warps.
            compute(Warpgroup { index, warp, ping_pong: PingPong::new(index) }, unsafe {
                shared.consumer(warp)
            });
            tma::wait_all();
        }
    }
}
