//! Capabilities: the whole converged block, a converged warp, all of the block's shared memory.
use crate::{Place, Steps, Tally};
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::ControlFlow;
use cuda_std::{barrier, math, memory, thread, warp};

/// A whole, converged thread block under the launch contract `K`. Not `Copy`: a barrier takes it by `&mut`.
pub struct Block<K> {
    pub(crate) thread: u32,
    /// Generic address of the launch's parameter.
    pub(crate) parameter: u64,
    contract: PhantomData<K>,
}

/// A whole, converged warp. Every operation that its 32 lanes do together asks for one.
#[derive(Clone, Copy)]
pub struct Warp {
    /// Its number in the block.
    pub(crate) index: u32,
    pub(crate) lane: u32,
}

/// The block's dynamic shared memory, all of it. Not `Copy`: split once.
pub struct Smem<K> {
    base: u32,
    contract: PhantomData<K>,
}

impl<K: Kernel> Block<K> {
    /// The block and its shared memory.
    ///
    /// # Safety
    /// - Called once per launch, first thing, by every thread.
    /// - The launch has `K::THREADS` threads a block along x and `K::SMEM_BYTES` bytes of dynamic shared
    ///   memory.
    /// - `parameter` is the generic address of its parameter ([`cuda_std::parameter_address!`]).
    #[inline(always)]
    pub unsafe fn enter(parameter: u64) -> (Self, Smem<K>) {
        let block = Block { thread: thread::thread_idx_x(), parameter, contract: PhantomData };
        (block, Smem { base: memory::dynamic_smem(), contract: PhantomData })
    }

    /// The block's number in the grid.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        thread::block_idx_x()
    }

    /// How many blocks there are.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        thread::grid_dim_x()
    }

    /// This thread's number among all of the launch's.
    #[inline(always)]
    pub(crate) fn launch_thread(&self) -> u32 {
        self.index() * K::THREADS + self.thread
    }

    /// This thread's warp.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        Warp { index: self.thread / 32, lane: self.thread % 32 }
    }

    /// How many warps it has.
    #[inline(always)]
    pub fn warps(&self) -> u32 {
        K::THREADS / 32
    }

    /// `f(row, quad)` for each of this thread's four columns at a time, of `rows` rows of `C` base tiles. A
    /// warp takes a row, or 128 columns of it, together: its lanes have the same row, and some no columns of
    /// it where there are fewer.
    #[inline(always)]
    pub fn deal_quads<const C: usize>(&self, rows: u32, f: impl Fn(u32, u32)) {
        let (warp, parts) = (self.warp(), (C as u32).div_ceil(8));
        for at in (Steps { at: warp.index, step: self.warps(), end: rows * parts }) {
            f(at / parts, at % parts * 32 + warp.lane)
        }
    }

    /// Lets the compiler forget what it knows of this thread's number. What follows from it is computed
    /// behind this call, where it is needed; of a loop's body LLVM would compute all of it before the loop,
    /// ahead of the first load.
    #[inline(always)]
    pub fn forget_thread(&mut self) {
        self.thread = math::opaque(self.thread)
    }

    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        // SAFETY: `Block` stands for all threads of the block, converged.
        unsafe { barrier::sync_threads() }
    }

    /// A barrier at which everybody learns whether `p` is true for one.
    #[inline(always)]
    pub(crate) fn any(&mut self, p: bool) -> bool {
        // SAFETY: `Block` stands for all threads of the block, converged.
        unsafe { barrier::any_thread(p) }
    }
}

impl Warp {
    /// Its number in the block.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.index
    }

    /// This thread's number in the warp.
    #[inline(always)]
    pub fn lane(self) -> u32 {
        self.lane
    }

    /// The value of lane `lane`.
    #[inline(always)]
    pub fn shuffle(self, x: u32, lane: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::shuffle(x, lane) }
    }

    /// The sum over all lanes.
    #[inline(always)]
    pub fn sum(self, x: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::sum(x) }
    }

    /// The sum over this lane and those below.
    #[inline(always)]
    pub fn prefix_sum(self, mut x: u32) -> u32 {
        for i in 0..5 {
            // SAFETY: `Warp` stands for 32 converged lanes.
            let below = unsafe { warp::shuffle_up(x, 1 << i) };
            x += if self.lane >= 1 << i { below } else { 0 };
        }
        x
    }

    /// A value that is the same for all lanes, as the assembler can know: it may then keep it in a uniform
    /// register.
    #[inline(always)]
    pub fn uniform(self, x: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::or(x) }
    }

    /// How many lanes have `p`.
    #[inline(always)]
    pub fn count(self, p: bool) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::ballot(p) }.count_ones()
    }

    /// True for all lanes if `p` is for one: a branch on it keeps the warp converged.
    #[inline(always)]
    pub fn any(self, p: bool) -> bool {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::any(p) }
    }

    #[inline(always)]
    pub(crate) fn sync(self) {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::sync() }
    }

    /// Combines the values of the eight lanes that share accumulator columns.
    #[inline(always)]
    pub(crate) fn octet(self, x: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe {
            let x = f(x, warp::shuffle_xor(x, 4));
            let x = f(x, warp::shuffle_xor(x, 8));
            f(x, warp::shuffle_xor(x, 16))
        }
    }

    /// Combines the values of the four lanes that share accumulator rows.
    #[inline(always)]
    pub(crate) fn quad(self, x: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe {
            let y = f(x, warp::shuffle_xor(x, 1));
            f(y, warp::shuffle_xor(y, 2))
        }
    }
}

/// One round of [`Smem::rounds`]: whether to go on.
type Round<K, A> = fn(&<K as Kernel>::Params, A, u32, &mut Block<K>, Smem<K>) -> ControlFlow<()>;

impl<K: Kernel> Smem<K> {
    /// Uses it again and again, a round each, with a barrier between, until `round` breaks off. Nothing of a
    /// round may be left when the next begins: `round` takes its right to the memory by value, and being a
    /// function, not a closure, it has no place to keep anything. `all` is for every round the same.
    #[inline(always)]
    pub fn rounds<A: Copy + 'static>(
        self,
        block: &mut Block<K>,
        rounds: impl Iterator<Item = u32>,
        params: &K::Params,
        all: A,
        round: Round<K, A>,
    ) where
        K::Params: 'static,
    {
        for i in rounds {
            if round(params, all, i, block, Smem { base: self.base, contract: PhantomData }).is_break() {
                return;
            }
            block.sync();
        }
    }

    /// Lends it as `N` words; behind a barrier it is whole again.
    #[inline(always)]
    pub fn lend<R, const N: usize>(
        &mut self,
        block: &mut Block<K>,
        f: impl FnOnce(Tally<'_, N>, &mut Block<K>) -> R,
    ) -> R {
        const { assert!(N * 4 <= K::SMEM_BYTES, "the launch has no room for as many words") }
        // SAFETY: at most the bytes of the launch, and `self`, the only right to them, is borrowed.
        let result = f(unsafe { Tally::at(self.base) }, block);
        block.sync();
        result
    }

    /// Splits it into one place of exactly the bytes that the contract declares to the host.
    #[inline(always)]
    pub fn split<P: Place>(self) -> P {
        const {
            assert!(P::BYTES == K::SMEM_BYTES, "the shared layout and the launch contract disagree");
            assert!(P::ALIGN <= 1024, "dynamic shared memory begins at a multiple of 1024 bytes")
        }
        // SAFETY: the launch gave `SMEM_BYTES` bytes from `base` on, and `self`, the only right to them, is
        // consumed.
        unsafe { P::at(self.base) }
    }
}
