//! The capabilities of a kernel: the converged thread block, a converged warp, and all of the block's shared
//! memory.
use crate::Steps;
use crate::exchange::SharedWords;
use crate::group::{Capability, sealed::Sealed};
use crate::shared::Place;
use contract::Kernel;
use core::marker::PhantomData;
use core::ops::ControlFlow;
use cuda_std::{barrier, math, memory, thread, warp};

/// The whole, converged thread block, under the launch contract `K`. `Block` is not `Copy`: each block
/// barrier takes it by `&mut`.
pub struct Block<K> {
    pub(crate) thread: u32,
    /// Generic address of the launch's parameter.
    pub(crate) parameter: u64,
    contract: PhantomData<K>,
}

/// A whole, converged warp. Every operation that needs all 32 lanes takes a `Warp`.
#[derive(Clone, Copy)]
pub struct Warp {
    /// The warp's index in the block.
    pub(crate) index: u32,
    pub(crate) lane: u32,
}

/// The capability of a thread to which a block has dealt four columns of a row ([`Block::deal_quads`]).
#[derive(Clone, Copy)]
pub struct Dealt(());

impl Sealed for Dealt {}
impl Capability for Dealt {}

/// All of the block's dynamic shared memory. `Smem` is not `Copy`: a kernel splits its shared memory once.
pub struct Smem<K> {
    pub(crate) base: u32,
    contract: PhantomData<K>,
}

impl<K: Kernel> Block<K> {
    /// Returns the block and its shared memory.
    ///
    /// # Safety
    /// - Every thread calls this once per launch, before anything else.
    /// - The launch has `K::THREADS` threads per block along x and `K::SMEM_BYTES` bytes of dynamic shared
    ///   memory.
    /// - `parameter` is the generic address of the kernel's parameter ([`cuda_std::parameter_address!`]).
    #[inline(always)]
    pub unsafe fn enter(parameter: u64) -> (Self, Smem<K>) {
        let block = Block { thread: thread::thread_idx_x(), parameter, contract: PhantomData };
        (block, Smem { base: memory::dynamic_smem(), contract: PhantomData })
    }

    /// The block's index in the grid.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        thread::block_idx_x()
    }

    /// The number of blocks in the grid.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        thread::grid_dim_x()
    }

    /// This thread's index in the launch.
    #[inline(always)]
    pub(crate) fn launch_thread(&self) -> u32 {
        self.index() * K::THREADS + self.thread
    }

    /// The numbers below `end` that are this thread's: the threads take one after the other, round by round.
    #[inline(always)]
    pub fn dealt(&self, end: u32) -> Steps {
        Steps { at: self.thread, step: K::THREADS, end }
    }

    /// The warp of this thread.
    #[inline(always)]
    pub fn warp(&self) -> Warp {
        Warp { index: self.thread / 32, lane: self.thread % 32 }
    }

    /// The number of warps in the block.
    #[inline(always)]
    pub fn warps(&self) -> u32 {
        K::THREADS / 32
    }

    /// Distributes `rows` rows of `C` base tiles over the block's threads, in quads of four columns, and
    /// calls `f(row, quad, dealt)` for each quad of this thread. A warp gets one row, or 128 columns of one
    /// row. A lane past the last column gets a quad that does not exist.
    #[inline(always)]
    pub fn deal_quads<const C: usize>(&self, rows: u32, f: impl Fn(u32, u32, Dealt)) {
        self.deal_quads_among::<C>([0, 1], rows, f)
    }

    /// Distributes rows as [`Block::deal_quads`] does, over the threads of several blocks. This block is the
    /// first of the two numbers, the number of blocks is the second.
    #[inline(always)]
    pub fn deal_quads_among<const C: usize>(
        &self,
        [own, blocks]: [u32; 2],
        rows: u32,
        f: impl Fn(u32, u32, Dealt),
    ) {
        let (warp, warps, parts) = (self.warp(), self.warps(), (C as u32).div_ceil(8));
        for at in (Steps { at: warp.index + own * warps, step: blocks * warps, end: rows * parts }) {
            f(at / parts, at % parts * 32 + warp.lane, Dealt(()))
        }
    }

    /// Distributes `rows` rows of `8 * P` base tiles over the block's warps, and calls `f(row, quads, dealt)`
    /// for each row of this warp. A lane has `P` quads of the row, 32 quads apart. Each lane loads and
    /// computes once what the row has once.
    #[inline(always)]
    pub fn deal_rows<const P: usize>(&self, rows: u32, f: impl Fn(u32, [u32; P], Dealt)) {
        let warp = self.warp();
        for row in (Steps { at: warp.index, step: self.warps(), end: rows }) {
            f(row, core::array::from_fn(|i| warp.lane + 32 * i as u32), Dealt(()))
        }
    }

    /// Hides this thread's index from the compiler. If values depend on the index, LLVM then computes them
    /// after this call, where a loop's body needs them. Without this call, LLVM hoists all of these values
    /// above the loop, ahead of the first load.
    #[inline(always)]
    pub fn forget_thread(&mut self) {
        self.thread = math::opaque(self.thread)
    }

    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        // SAFETY: `Block` stands for all threads of the block, converged.
        unsafe { barrier::sync_threads() }
    }

    /// A block barrier that tells every thread whether `p` is true for any thread.
    #[inline(always)]
    pub(crate) fn any(&mut self, p: bool) -> bool {
        // SAFETY: `Block` stands for all threads of the block, converged.
        unsafe { barrier::any_thread(p) }
    }
}

impl Warp {
    /// The warp's index in the block.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.index
    }

    /// This thread's lane, 0 to 31.
    #[inline(always)]
    pub fn lane(self) -> u32 {
        self.lane
    }

    /// Hides this thread's lane from the compiler, as [`Block::forget_thread`] does.
    #[inline(always)]
    pub fn forget_lane(self) -> Self {
        Warp { lane: math::opaque(self.lane), ..self }
    }

    /// The value of `x` in lane `lane`.
    #[inline(always)]
    pub fn shuffle(self, x: u32, lane: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::shuffle(x, lane) }
    }

    /// The sum of `x` over all lanes.
    #[inline(always)]
    pub fn sum(self, x: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::sum(x) }
    }

    /// The sum of `x` over all lanes, in all lanes. The order of the additions is fixed.
    #[inline(always)]
    pub fn total(self, x: f32) -> f32 {
        [16, 8, 4, 2, 1].iter().fold(x, |x, lanes| {
            // SAFETY: `Warp` stands for 32 converged lanes.
            x + unsafe { warp::shuffle_xor(x, *lanes) }
        })
    }

    /// The sum of `x` over this lane and all lanes with a lower index.
    #[inline(always)]
    pub fn prefix_sum(self, mut x: u32) -> u32 {
        for i in 0..5 {
            // SAFETY: `Warp` stands for 32 converged lanes.
            let below = unsafe { warp::shuffle_up(x, 1 << i) };
            x += if self.lane >= 1 << i { below } else { 0 };
        }
        x
    }

    /// Returns `x`, which must be the same in all lanes. ptxas may then keep the result in a uniform
    /// register.
    #[inline(always)]
    pub fn uniform(self, x: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::or(x) }
    }

    /// The number of lanes in which `p` is true.
    #[inline(always)]
    pub fn count(self, p: bool) -> u32 {
        self.ballot(p).count_ones()
    }

    /// Bit `l` of the result is `p` of lane `l`.
    #[inline(always)]
    pub fn ballot(self, p: bool) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::ballot(p) }
    }

    /// Returns true in all lanes if `p` is true in any lane. A branch on the result keeps the warp converged.
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

    /// The largest of all lanes' numbers.
    #[inline(always)]
    pub fn largest(self, x: u32) -> u32 {
        // SAFETY: `Warp` stands for 32 converged lanes.
        unsafe { warp::largest(x) }
    }

    /// The largest of the numbers of this lane's half of the warp.
    #[inline(always)]
    pub fn largest_of_half(self, x: u32) -> u32 {
        [8, 4, 2, 1].iter().fold(x, |x, lanes| {
            // SAFETY: `Warp` stands for 32 converged lanes.
            x.max(unsafe { warp::shuffle_xor(f32::from_bits(x), *lanes) }.to_bits())
        })
    }

    /// The largest of the numbers of eight neighbouring lanes, from a multiple of eight on.
    #[inline(always)]
    pub fn largest_of_eight(self, x: u32) -> u32 {
        [4, 2, 1].iter().fold(x, |x, lanes| {
            // SAFETY: `Warp` stands for 32 converged lanes.
            x.max(unsafe { warp::shuffle_xor(f32::from_bits(x), *lanes) }.to_bits())
        })
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

/// One round of [`Smem::rounds`]. The result of a round says whether another round follows.
type Round<K, A> = fn(&<K as Kernel>::Params, A, u32, &mut Block<K>, Smem<K>) -> ControlFlow<()>;

impl<K: Kernel> Smem<K> {
    /// Runs rounds that use the same shared memory, with a barrier between two rounds, until `round` ends the
    /// loop.
    ///
    /// No view of shared memory survives a round: `round` takes the memory by value, and a function pointer
    /// captures nothing. Every round gets the same `all`.
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

    /// Lends the memory as `N` words. A barrier ends this loan.
    #[inline(always)]
    pub fn lend<R, const N: usize>(
        &mut self,
        block: &mut Block<K>,
        f: impl FnOnce(SharedWords<'_, N>, &mut Block<K>) -> R,
    ) -> R {
        const { assert!(N * 4 <= K::SMEM_BYTES, "the launch has less shared memory than these words") }
        // SAFETY: the words lie within the launch's shared memory, and `self`, the only right to it, is
        // borrowed.
        let result = f(unsafe { SharedWords::at(self.base) }, block);
        block.sync();
        result
    }

    /// Splits the memory into the places of `P`. The size of `P` must equal the launch contract's shared
    /// memory.
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
