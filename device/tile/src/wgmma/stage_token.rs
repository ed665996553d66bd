//! Products of kept stages: a stage outlives the product that reads it, so that another product can read it
//! too.
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::{Published, StageToken};
use crate::shared::SharedTile;
use crate::wgmma::sealed::Issue;
use crate::wgmma::{issue_ab, settle_ab};
use cuda_std::wgmma;

/// The product `acc = a [l r]^T`. The rows of `l` and `r` are the first and the last columns of one tile,
/// which two stages hold. The product starts when `l` is full, and waits for `r` in between.
pub(super) struct AbtOfTwo<'p, E, const N: usize, const K: usize, const L: usize, const R: usize>(
    pub(super) &'p mut Acc<1, N>,
    pub(super) &'p Published<SharedTile<E, 4, K>>,
    pub(super) &'p StageToken<SharedTile<E, N, L>>,
    pub(super) &'p StageToken<SharedTile<E, N, R>>,
);

/// The product `acc += a b`, where `b` is a kept stage.
pub(super) struct AbOfToken<'p, E, const N: usize, const K: usize>(
    pub(super) &'p mut Acc<1, N>,
    pub(super) &'p AFrag<E, 1, K>,
    pub(super) &'p StageToken<SharedTile<E, K, N>>,
);

// SAFETY: `issue` starts one group, which accesses the accumulator, the tile of `a` and both stages.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const L: usize, const R: usize, const W: usize>
    Issue<W> for AbtOfTwo<'_, E, N, K, L, R>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        const { assert!(wgmma::has_width(N), "there is no product of this width") }
        const { assert!(L + R == K, "the two parts must have the columns of `a`") }
        let a = self.1.descriptor().operand().opaque();
        let step = |k: usize| a + SharedTile::<E, 4, K>::along_rows(k);
        let acc = &mut self.0.0[0];
        // SAFETY: the caller keeps the preconditions. All three tiles may be read: `a` is published, and both
        // stages have landed.
        unsafe {
            wgmma::fence();
            for k in 0..L {
                let b = self.2.descriptor().operand() + SharedTile::<E, N, L>::along_rows(k);
                E::abt(acc, step(k), b, k > 0);
            }
            self.3.wait();
            // ptxas wants a fence in each basic block with products.
            wgmma::fence();
            for k in 0..R {
                let b = self.3.descriptor().operand() + SharedTile::<E, N, R>::along_rows(k);
                E::abt(acc, step(L + k), b, L + k > 0);
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
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const W: usize> Issue<W>
    for AbOfToken<'_, E, N, K>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        // SAFETY: the caller keeps the preconditions; the stage has landed.
        unsafe { issue_ab(self.0, self.1, self.2.descriptor().operand()) }
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
