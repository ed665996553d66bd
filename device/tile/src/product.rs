//! Products of a warpgroup, which run while their warps do something else.
//!
//! A product borrows its accumulator and its operands, and takes the next stage of its ring: nothing of it
//! has a name that anybody could use while it is in flight, and there is no guard that could be forgotten.
//! Running one waits for the stage, issues, settles, and leaves the stage.
use crate::mma::WarpgroupCore;
use crate::{AFrag, Acc, Consumer, Engine, Kept, SharedTile, SharedTiles, Tma, Warpgroup};
use core::hint::cold_path;
use cuda_std::math::opaque_b64;
use cuda_std::{warp, wgmma};
use sealed::Steps;

/// `acc = a b^T`: `a` is the warpgroup's own of several tiles, `b` the next stage of a ring.
pub struct Abt<'p, E, const N: usize, const K: usize, const W: usize, const S: usize, By = Tma>(
    pub &'p mut Acc<1, N>,
    pub &'p Kept<'p, SharedTiles<E, 4, K, W>>,
    pub &'p mut Consumer<SharedTile<E, N, K>, S, By>,
);

/// `acc += a b`: `b` is the next stage of a ring.
pub struct Ab<'p, E, const N: usize, const K: usize, const S: usize, By = Tma>(
    pub &'p mut Acc<1, N>,
    pub &'p AFrag<E, 1, K>,
    pub &'p mut Consumer<SharedTile<E, K, N>, S, By>,
);

/// K-steps of a kept tile whose descriptors may stay in uniform registers from product to product, each
/// beside a stage's; there are 63 such registers. Those of the others are summed anew. More than 8 k-steps
/// leave room for none; of twelve, ptxas 13.0 kept some and lost the upper half of one.
const fn hoisted(k_steps: usize) -> usize {
    if k_steps > 8 { 0 } else { 4 }
}

/// A product that one of `W` warpgroups runs: [`Abt`] or [`Ab`], and no other.
///
/// Only [`Warpgroup::run`], [`Warpgroup::run_in_turn`] and [`Warpgroup::overlap`] take the steps of a
/// product: a kernel cannot leave a stage that it has not read.
pub trait Product<const W: usize>: Steps<W> {}
impl<const W: usize, P: Steps<W>> Product<W> for P {}

/// What only this crate may implement and call.
pub(crate) mod sealed {
    /// The steps of a product, in their order. Those that need a promise are `unsafe`, since a bound on
    /// [`super::Product`] brings the names of these methods into scope.
    ///
    /// # Safety
    /// - `issue` starts exactly one group, which touches nothing but what the product borrows and the ring's
    ///   next stage.
    pub unsafe trait Steps<const W: usize> {
        /// Accumulator.
        type Acc;
        /// Waits for the stage.
        fn ready(&self);
        /// Starts the product for the warpgroup of this number.
        ///
        /// # Safety
        /// - Converged warpgroup; the stage is there; `settle` follows, before anything of it is used.
        unsafe fn issue(&mut self, group: u32);
        /// Waits until at most `LEFT` younger groups are in flight.
        ///
        /// # Safety
        /// - Converged warpgroup.
        unsafe fn settle<const LEFT: u32>(&mut self);
        /// Leaves the stage.
        ///
        /// # Safety
        /// - Once, behind `ready` and `settle`.
        unsafe fn leave(&mut self);
        /// The accumulator, settled.
        fn acc(&mut self) -> &mut Self::Acc;
    }
}

// SAFETY: one group, of the accumulator, the tile of `a` and the stage.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const W: usize, const S: usize, By: Engine>
    Steps<W> for Abt<'_, E, N, K, W, S, By>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn ready(&self) {
        self.2.arrived()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        const { assert!(wgmma::has_width(N), "there is no such product") }
        let (a, b) = (self.1.tile(group), self.2.descriptor());
        let anew = opaque_b64(a);
        // SAFETY: the caller's promise; both tiles may be read: one is kept, the other has arrived.
        unsafe {
            wgmma::fence();
            for k in 0..K {
                let a = if k < hoisted(K) { a } else { anew };
                let (a, b) =
                    (a + SharedTile::<E, 4, K>::along_rows(k), b + SharedTile::<E, N, K>::along_rows(k));
                E::abt(&mut self.0.0[0], a, b, k > 0);
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0[0]) }
    }
    #[inline(always)]
    unsafe fn leave(&mut self) {
        self.2.leave()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

// SAFETY: one group, of the accumulator, the registers of `a` and the stage.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const W: usize, const S: usize, By: Engine>
    Steps<W> for Ab<'_, E, N, K, S, By>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn ready(&self) {
        self.2.arrived()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        const { assert!(wgmma::has_width(N), "there is no such product") }
        let b = self.2.descriptor();
        // SAFETY: the caller's promise; the stage has arrived.
        unsafe {
            wgmma::fence();
            for k in 0..K {
                E::ab(&mut self.0.0[0], self.1.registers[k][0], b + SharedTile::<E, K, N>::along_columns(k));
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller's promise. The product reads `a` until here.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0[0]) }
        for k in 0..K {
            wgmma::hold(&self.1.registers[k][0]);
        }
    }
    #[inline(always)]
    unsafe fn leave(&mut self) {
        self.2.leave()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

impl<const W: usize> Warpgroup<W> {
    /// One product, done when it returns.
    #[inline(always)]
    pub fn run(&mut self, mut product: impl Product<W>) {
        product.ready();
        // SAFETY: `Warpgroup` stands for 128 converged threads; the steps come in their order.
        unsafe {
            product.issue(self.index);
            product.settle::<0>();
            product.leave();
        }
    }

    /// One product in the warpgroup's turn, done when it returns.
    #[inline(always)]
    pub fn run_in_turn(&mut self, mut product: impl Product<W>) {
        product.ready();
        self.turns.take();
        // SAFETY: `Warpgroup` stands for 128 converged threads.
        unsafe { product.issue(self.index) };
        self.turns.pass();
        // SAFETY: the same; the steps come in their order.
        unsafe {
            product.settle::<0>();
            product.leave();
        }
    }

    /// Two products, issued together in the warpgroup's turn. `meanwhile` has the first one's accumulator
    /// while the second, and the other warpgroups' products, are under way; `then` has both when both are
    /// done, and makes the result of what `meanwhile` left. All work on `state`.
    ///
    /// What `meanwhile` says first is the same in all lanes of a warp, and seldom true; `then` is told. A
    /// branch on it keeps the wait for the second product behind `meanwhile`: ptxas moves a wait up over
    /// anything that does not depend on it, but not over the edge of a basic block. The wait itself stands
    /// behind the branch, not in its arms: warps of one warpgroup may part there, and all must come to the
    /// same `wgmma.wait_group` (compute-sanitizer's synccheck reports it otherwise).
    #[inline(always)]
    pub fn overlap<A: Product<W>, B: Product<W>, State, R, T>(
        &mut self,
        mut first: A,
        mut second: B,
        state: &mut State,
        meanwhile: impl FnOnce(&mut State, &mut A::Acc) -> (bool, R),
        then: impl FnOnce(&mut State, &A::Acc, &mut B::Acc, R, bool) -> T,
    ) -> T {
        first.ready();
        self.turns.take();
        // SAFETY: `Warpgroup` stands for 128 converged threads; both are settled below, before their
        // borrows end.
        unsafe { first.issue(self.index) };
        second.ready();
        // SAFETY: the same.
        unsafe { second.issue(self.index) };
        self.turns.pass();
        // SAFETY: the same; the first product's steps come in their order.
        unsafe {
            first.settle::<1>();
            first.leave();
        }
        let (rare, value) = meanwhile(state, first.acc());
        if rare {
            cold_path();
            // SAFETY: the same in all lanes.
            unsafe { warp::sync() }
        }
        // SAFETY: the same.
        unsafe { second.settle::<0>() };
        let result = then(state, first.acc(), second.acc(), value, rare);
        // SAFETY: the second product's steps come in their order.
        unsafe { second.leave() };
        result
    }
}
