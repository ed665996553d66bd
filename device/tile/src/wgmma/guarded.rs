//! Products of guarded stages: several products read a stage, and the last one releases it.
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::StageGuard;
use crate::shared::{SharedTile, SharedTiles};
use crate::tma::ValuedTile;
use crate::wgmma::sealed::Issue;
use crate::wgmma::{hoisted, issue_ab, settle_ab};
use contract::Element;
use cuda_std::wgmma;

/// The product `acc = a b^T`, where `a` is the warpgroup's own tile of a guarded stage, or the stage's only
/// tile. The last field is the number of base tiles of columns that are not 0: a constant, at most `K`.
pub(super) struct GuardedAbt<'p, E: Element, const N: usize, const K: usize, const T: usize>(
    pub(super) &'p mut Acc<1, N>,
    pub(super) &'p StageGuard<'p, SharedTiles<E, 4, K, T>>,
    pub(super) &'p StageGuard<'p, ValuedTile<E, N, K>>,
    pub(super) usize,
);

/// The product `acc += a b` of the first `N` of its `D` base tiles of columns or, if all warpgroups have the
/// only one of `T` tiles of rows, of the warpgroup's `N`.
pub(super) struct GuardedAb<'p, E: Element, const N: usize, const K: usize, const D: usize, const T: usize>(
    pub(super) &'p mut Acc<1, N>,
    pub(super) &'p AFrag<E, 1, K>,
    pub(super) &'p StageGuard<'p, ValuedTile<E, K, D>>,
);

// SAFETY: `issue` starts one group, which accesses the accumulator and both stages.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const T: usize, const W: usize> Issue<W>
    for GuardedAbt<'_, E, N, K, T>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {}
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        const { assert!(wgmma::has_width(N), "there is no product of this width") }
        let (a, b) = (self.1.tile(if T == 1 { 0 } else { group }).operand(), self.2.first_tile().operand());
        let anew = a.opaque();
        // SAFETY: the caller keeps the preconditions; both stages have landed.
        unsafe {
            wgmma::fence();
            for k in 0..self.3 {
                // Two products of a step have such operands. Half of the descriptors each may stay.
                let a = if k < hoisted(K) / 2 { a } else { anew };
                let (a, b) =
                    (a + SharedTile::<E, 4, K>::along_rows(k), b + SharedTile::<E, N, K>::along_rows(k));
                E::abt(&mut self.0.0[0], a, b, k > 0);
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0[0]) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {}
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the registers of `a` and the stage.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const D: usize, const T: usize, const W: usize>
    Issue<W> for GuardedAb<'_, E, N, K, D, T>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {}
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        const { assert!(T == W && N <= D || T == 1 && N * W <= D, "warpgroups share rows, or columns") }
        let b = self.2.first_tile();
        let b = if T == W { b } else { b + group as u64 * const { SharedTile::<E, K, D>::along_rows(N) } };
        // SAFETY: the caller keeps the preconditions; the stage has landed.
        unsafe { issue_ab(self.0, self.1, b.operand()) }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { settle_ab::<LEFT, E, N, K>(self.0, self.1) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {}
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}
