//! Capabilities: the whole converged block, a converged warp, all of the block's shared memory.
use crate::Place;
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::{barrier, memory, thread, warp};

/// A whole, converged thread block under the launch contract `K`. Not `Copy`: a barrier takes it by `&mut`.
pub struct Block<K> {
    pub(crate) thread: u32,
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
    #[inline(always)]
    pub unsafe fn enter() -> (Self, Smem<K>) {
        let block = Block { thread: thread::thread_idx_x(), contract: PhantomData };
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

    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        // SAFETY: `Block` stands for all threads of the block, converged.
        unsafe { barrier::sync_threads() }
    }
}

impl Warp {
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

impl<K: Kernel> Smem<K> {
    /// Uses it again and again, a round each, with a barrier between. Nothing of a round may be left when
    /// the next begins: `round` takes its right to the memory by value, and being a function, not a closure,
    /// it has no place to keep anything.
    #[inline(always)]
    pub fn rounds(
        self,
        block: &mut Block<K>,
        rounds: impl Iterator<Item = u32>,
        params: &K::Params,
        round: fn(&K::Params, u32, &mut Block<K>, Smem<K>),
    ) where
        K::Params: 'static,
    {
        for i in rounds {
            round(params, i, block, Smem { base: self.base, contract: PhantomData });
            block.sync();
        }
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
