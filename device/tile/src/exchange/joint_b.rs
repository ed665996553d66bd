//! B operands that the warps of a block make together: each warp writes a part, and all warps read the whole
//! operand.
use crate::mma::{ColFrag, ColVec, TensorCore};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v2_b32};

/// Shared memory for a B operand of `K` k-steps of `G` groups of 8 columns, with two values per column of
/// each k-step. The part of one warp is one k-step of `OWN` groups.
///
/// There are two buffers, which alternate. A warp that still reads one buffer has not reached the barrier of
/// the other buffer, so no warp overwrites the first.
pub struct JointB<E, const K: usize, const G: usize> {
    now: u32,
    then: u32,
    element: PhantomData<E>,
}

/// The k-step and the first group of a warp's part, if each part has `OWN` groups.
#[inline(always)]
pub(crate) fn part<const K: usize, const OWN: usize>(warp: Warp) -> [u32; 2] {
    [warp.index % K as u32, warp.index / K as u32 * OWN as u32]
}

// SAFETY: the layout has two words of each lane for each k-step and group, and two values for each column of
// each k-step, and all of this twice.
unsafe impl<E: TensorCore, const K: usize, const G: usize> Place for JointB<E, K, G> {
    const BYTES: usize = 2 * Self::TURN as usize;
    const ALIGN: usize = 8;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        JointB { now: base, then: base + Self::TURN, element: PhantomData }
    }
}

impl<E: TensorCore, const K: usize, const G: usize> JointB<E, K, G> {
    const OPERAND: u32 = (K * G * 256) as u32;
    const TURN: u32 = Self::OPERAND + (K * G * 64) as u32;

    /// The k-step and the first group of this warp's part.
    #[inline(always)]
    pub fn part<const OWN: usize>(warp: Warp) -> [u32; 2] {
        part::<K, OWN>(warp)
    }

    #[inline(always)]
    fn turn<C: Kernel, const OWN: usize>(&mut self) {
        const { assert!(C::THREADS as usize * OWN == K * G * 32, "the parts must cover the operand") }
        core::mem::swap(&mut self.now, &mut self.then);
    }

    /// Writes the operand: every warp writes its part. After a barrier, all parts are readable, and every
    /// thread knows whether `p` is true for any thread.
    #[inline(always)]
    pub fn write<C: Kernel, const OWN: usize>(
        &mut self,
        own: &ColFrag<E, 1, OWN>,
        p: bool,
        block: &mut Block<C>,
    ) -> bool {
        self.turn::<C, OWN>();
        let (warp, [k, group]) = (block.warp(), part::<K, OWN>(block.warp()));
        let at = self.now + (k * G as u32 + group) * 256 + warp.lane * 8;
        for g in 0..OWN {
            // SAFETY: these are this lane's words of the warp's part; the barrier follows.
            unsafe { st_shared_v2_b32(at + g as u32 * 256, own.0[0][g]) }
        }
        block.any(p)
    }

    /// K-step `k` of the operand that was last written.
    #[inline(always)]
    pub fn k_step(&self, k: usize, warp: Warp) -> ColFrag<E, 1, G> {
        let at = self.now + (k % K * G) as u32 * 256 + warp.lane * 8;
        // SAFETY: the words lie in this shared memory, and were written before the barrier in `write`.
        let word = |g: usize| unsafe { ld_shared_v2_b32(at + g as u32 * 256) };
        ColFrag([core::array::from_fn(word)], PhantomData)
    }

    /// Writes values: every warp writes two values for each column of its part. After a barrier, all values
    /// are readable.
    #[inline(always)]
    pub fn write_values<C: Kernel, const OWN: usize>(
        &mut self,
        values: [ColVec<f32, OWN>; 2],
        block: &mut Block<C>,
    ) {
        self.turn::<C, OWN>();
        let (Warp { lane, .. }, [k, group]) = (block.warp(), part::<K, OWN>(block.warp()));
        if lane < 4 {
            for g in 0..OWN {
                for c in 0..2 {
                    let column = (k * G as u32 + group + g as u32) * 8 + lane * 2 + c as u32;
                    let pair = [0, 1].map(|i| values[i].0[g][c].to_bits());
                    // SAFETY: this is the warp's own part; the barrier follows.
                    unsafe { st_shared_v2_b32(self.now + Self::OPERAND + column * 8, pair) }
                }
            }
        }
        block.sync();
    }

    /// For each column of `N` groups from group `first` on, evaluates `f` with the values of all k-steps that
    /// were last written.
    #[inline(always)]
    pub fn values<T: Copy, const N: usize>(
        &self,
        first: u32,
        warp: Warp,
        f: impl Fn([[f32; 2]; K]) -> T,
    ) -> ColVec<T, N> {
        ColVec::from_fn(warp, |column| {
            // A column that does not exist is replaced by another column.
            let column = (first * 8 + column) % (G as u32 * 8);
            f(core::array::from_fn(|k| {
                let at = self.now + Self::OPERAND + ((k * G) as u32 * 8 + column) * 8;
                // SAFETY: the words lie in this shared memory, and were written before the barrier in
                // `write_values`.
                unsafe { ld_shared_v2_b32(at) }.map(f32::from_bits)
            }))
        })
    }
}
