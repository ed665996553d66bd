//! Exchange of registers between warps, through shared memory.
use crate::Block;
use crate::group::sealed::Sealed;
use crate::group::{SplitGroup, WarpRows};
use crate::mma::{Acc, RowSum, RowVec};
use crate::shared::Place;
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::math::fma;
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// A value in f32 registers. Every lane has the same number of registers.
pub trait Registers: Sealed {
    /// Number of registers per lane.
    const COUNT: usize;
    /// A value whose registers are all zero.
    fn zero() -> Self;
    /// Calls `f` for each register, in a fixed order.
    fn each_register(&mut self, f: impl FnMut(&mut f32));
}

impl<const M: usize, const N: usize> Sealed for Acc<M, N> {}
impl<const M: usize, const N: usize> Registers for Acc<M, N> {
    const COUNT: usize = M * N * 8;
    #[inline(always)]
    fn zero() -> Self {
        Acc::zero()
    }
    #[inline(always)]
    fn each_register(&mut self, f: impl FnMut(&mut f32)) {
        self.0.as_flattened_mut().as_flattened_mut().as_flattened_mut().iter_mut().for_each(f)
    }
}
impl<const M: usize> Sealed for RowVec<M> {}
impl<const M: usize> Registers for RowVec<M> {
    const COUNT: usize = M * 2;
    #[inline(always)]
    fn zero() -> Self {
        RowVec::splat(0.0)
    }
    #[inline(always)]
    fn each_register(&mut self, f: impl FnMut(&mut f32)) {
        self.0.as_flattened_mut().iter_mut().for_each(f)
    }
}
impl<const M: usize> Sealed for RowSum<M> {}
impl<const M: usize> Registers for RowSum<M> {
    const COUNT: usize = M * 4;
    #[inline(always)]
    fn zero() -> Self {
        RowSum::zero()
    }
    #[inline(always)]
    fn each_register(&mut self, f: impl FnMut(&mut f32)) {
        self.0.as_flattened_mut().iter_mut().for_each(f)
    }
}
impl<A, B> Sealed for (A, B) {}
impl<A: Registers, B: Registers> Registers for (A, B) {
    const COUNT: usize = A::COUNT + B::COUNT;
    #[inline(always)]
    fn zero() -> Self {
        (A::zero(), B::zero())
    }
    #[inline(always)]
    fn each_register(&mut self, mut f: impl FnMut(&mut f32)) {
        self.0.each_register(&mut f);
        self.1.each_register(&mut f);
    }
}

/// The shared memory of `P`, which is no longer in use. `P` is, for example, the stages of a ring.
pub struct Scratch<P> {
    pub(crate) base: u32,
    was: PhantomData<P>,
}

/// The values of all split groups except the first. Each warp of the first group gets the values for its own
/// rows.
pub struct Exchanged<R, const GROUPS: usize> {
    /// The shared address of this lane's first word of the first value.
    at: u32,
    what: PhantomData<R>,
}

/// The value of one group.
pub struct FromGroup<'l, R> {
    at: u32,
    left: PhantomData<&'l R>,
}

impl<P: Place> Scratch<P> {
    /// # Safety
    /// - `P::BYTES` bytes of shared memory from `base` on belong to no other value, and no warp accesses
    ///   them.
    #[inline(always)]
    pub(crate) unsafe fn new(base: u32) -> Self {
        Scratch { base, was: PhantomData }
    }

    /// Each warp of every group except the first writes `what` and gets `None`. After a barrier, each warp of
    /// the first group gets the values of the other groups for its own rows.
    #[inline(always)]
    pub fn exchange<A: Registers, K: Kernel, const R: usize, const M: usize, const GROUPS: usize>(
        self,
        mut what: A,
        rows: WarpRows<R, M>,
        group: SplitGroup<GROUPS>,
        block: &mut Block<K>,
    ) -> Option<Exchanged<A, GROUPS>> {
        const {
            assert!(
                R / M * (GROUPS - 1) * A::COUNT * 128 <= P::BYTES,
                "the place is too small for the values of the groups"
            )
        }
        // One register takes 128 bytes for all lanes of a warp, and causes no bank conflict.
        let size = (A::COUNT * 128) as u32;
        let first = self.base + rows.index() * (GROUPS as u32 - 1) * size + rows.warp().lane * 4;
        if group.index() > 0 {
            let mut at = first + (group.index() - 1) * size;
            what.each_register(|x| {
                // SAFETY: this lane's word lies in shared memory that belongs to this warp until the barrier:
                // no other warp has both this group and these rows.
                unsafe { st_shared_b32(at, x.to_bits()) }
                at += 128;
            });
        }
        block.sync();
        (group.index() == 0).then_some(Exchanged { at: first, what: PhantomData })
    }
}

impl<A: Registers, const GROUPS: usize> Exchanged<A, GROUPS> {
    /// The values of the other groups, in order.
    #[inline(always)]
    pub fn others(&self) -> impl Iterator<Item = FromGroup<'_, A>> {
        (0..GROUPS as u32 - 1)
            .map(|group| FromGroup { at: self.at + group * (A::COUNT * 128) as u32, left: PhantomData })
    }
}

impl<const M: usize, const N: usize, B: Registers> FromGroup<'_, (Acc<M, N>, B)> {
    /// Returns the second value, which the warps exchanged together with the accumulator.
    #[inline(always)]
    pub fn beside(&self) -> B {
        let (mut at, mut beside) = (self.at + (Acc::<M, N>::COUNT * 128) as u32, B::zero());
        beside.each_register(|x| {
            *x = read(at);
            at += 128;
        });
        beside
    }

    /// Makes row `r` of `acc` equal to `acc * mine[r] + other * scale[r]`, where `other` is the group's
    /// accumulator. The function reads `other` piece by piece, because two accumulators of 128 columns do not
    /// fit registers.
    #[inline(always)]
    pub fn add_scaled(&self, acc: &mut Acc<M, N>, mine: &RowVec<M>, scale: &RowVec<M>) {
        let mut at = self.at;
        acc.each(|m, _, _, i, x| {
            *x = fma(*x, mine.0[m][i / 2], read(at) * scale.0[m][i / 2]);
            at += 128;
        });
    }
}

/// Reads a word that another warp has written. Only `FromGroup`, which exists after the barrier, calls this
/// function.
#[inline(always)]
fn read(at: u32) -> f32 {
    // SAFETY: the word was written before the barrier in `exchange`, and no thread has written it since.
    f32::from_bits(unsafe { ld_shared_b32(at) })
}
