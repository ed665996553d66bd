//! Registers handed from warp to warp through shared memory.
use crate::Block;
use crate::group::sealed::Sealed;
use crate::group::{SplitGroup, WarpRows};
use crate::mma::{Acc, RowSum, RowVec};
use crate::shared::Place;
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::math::fma;
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// What consists of f32 registers, the same in every lane.
pub trait Registers: Sealed {
    /// How many a lane holds.
    const COUNT: usize;
    /// All zeros.
    fn zero() -> Self;
    /// `f` of each, in a fixed order.
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

/// Place `P`, once nobody uses it any more: a ring's stages, say.
pub struct Scratch<P> {
    pub(crate) base: u32,
    was: PhantomData<P>,
}

/// What the warps of `TEAMS` teams have left there, all but the first team's; read by the warp of the first
/// team that has the same rows.
pub struct Exchanged<R, const TEAMS: usize> {
    /// This lane's first word of the first of them.
    at: u32,
    what: PhantomData<R>,
}

/// What one of them has left.
pub struct FromGroup<'l, R> {
    at: u32,
    left: PhantomData<&'l R>,
}

impl<P: Place> Scratch<P> {
    /// # Safety
    /// - `base` starts `P::BYTES` bytes of shared memory that nothing else stands for, and that no warp
    ///   touches.
    #[inline(always)]
    pub(crate) unsafe fn new(base: u32) -> Self {
        Scratch { base, was: PhantomData }
    }

    /// Every warp but those of the first team leaves `what` it has, and gets `None`; behind a barrier, those
    /// of the first team get what the others of their rows have left.
    #[inline(always)]
    pub fn exchange<A: Registers, K: Kernel, const R: usize, const M: usize, const TEAMS: usize>(
        self,
        mut what: A,
        rows: WarpRows<R, M>,
        team: SplitGroup<TEAMS>,
        block: &mut Block<K>,
    ) -> Option<Exchanged<A, TEAMS>> {
        const {
            assert!(
                R / M * (TEAMS - 1) * A::COUNT * 128 <= P::BYTES,
                "the place is too small for what warps leave"
            )
        }
        // A register of all lanes is 128 bytes, free of bank conflicts.
        let size = (A::COUNT * 128) as u32;
        let first = self.base + rows.index() * (TEAMS as u32 - 1) * size + rows.warp().lane * 4;
        if team.index() > 0 {
            let mut at = first + (team.index() - 1) * size;
            what.each_register(|x| {
                // SAFETY: this lane's word of a place that is this warp's until the barrier: no other one is
                // of the same team and has the same rows.
                unsafe { st_shared_b32(at, x.to_bits()) }
                at += 128;
            });
        }
        block.sync();
        (team.index() == 0).then_some(Exchanged { at: first, what: PhantomData })
    }
}

impl<A: Registers, const TEAMS: usize> Exchanged<A, TEAMS> {
    /// What the other teams have left, each in its turn.
    #[inline(always)]
    pub fn others(&self) -> impl Iterator<Item = FromGroup<'_, A>> {
        (0..TEAMS as u32 - 1)
            .map(|team| FromGroup { at: self.at + team * (A::COUNT * 128) as u32, left: PhantomData })
    }
}

impl<const M: usize, const N: usize, B: Registers> FromGroup<'_, (Acc<M, N>, B)> {
    /// What lies beside the accumulator.
    #[inline(always)]
    pub fn beside(&self) -> B {
        let (mut at, mut beside) = (self.at + (Acc::<M, N>::COUNT * 128) as u32, B::zero());
        beside.each_register(|x| {
            *x = read(at);
            at += 128;
        });
        beside
    }

    /// Row `r` of `acc` becomes `acc * mine[r] + theirs * scale[r]`, `theirs` being the accumulator: never
    /// all in registers, which D = 128 does not have twice.
    #[inline(always)]
    pub fn add_scaled(&self, acc: &mut Acc<M, N>, mine: &RowVec<M>, scale: &RowVec<M>) {
        let mut at = self.at;
        acc.each(|m, _, _, i, x| {
            *x = fma(*x, mine.0[m][i / 2], read(at) * scale.0[m][i / 2]);
            at += 128;
        });
    }
}

/// A word that another warp has left. Only `FromGroup`, which stands behind the barrier, calls it.
#[inline(always)]
fn read(at: u32) -> f32 {
    // SAFETY: written before the barrier in `exchange`, and by nobody since.
    f32::from_bits(unsafe { ld_shared_b32(at) })
}
