//! Asynchronous products of a warpgroup.
//!
//! A product borrows its accumulator and operands, and takes the next stage of its pipeline. Other code
//! therefore cannot name a value in flight, and no guard can be forgotten. A call that runs a product waits
//! for the stage, issues the product, waits for the product, and releases the stage.
use crate::group::Warpgroup;
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::{Consumer, StageGuard};
use crate::shared::{SharedTile, SharedTiles};
use crate::tma::{Tma, TmaTransport};
use contract::Element;
use core::hint::cold_path;
use cuda_std::wgmma::Operand;
use cuda_std::{warp, wgmma};
use sealed::Issue;

mod byte_sums;
mod first_columns;
mod five;
mod guarded;
mod joint_a;
mod operand_exchange;
mod part_sums;
mod seesaw;
mod short_sums;
mod stage_token;

pub use byte_sums::{ByteSums, HasSums};
pub use first_columns::AbtOfFirst;
pub use five::{KeptRows, Never, Step, StepOrder, ValuedStage};
pub use joint_a::JointA;
pub use operand_exchange::OperandExchange;
use operand_exchange::{AbPassed, Turn};
pub use part_sums::PartSums;
pub use seesaw::{Seesaw, SeesawStages};
pub use short_sums::{AbBytes, AbtBytes, MOST_ROWS, ShortSums, SumsRoom, Totals};
use stage_token::{AbOfToken, AbtOfTwo};

/// The product `acc = a b^T`. `a` is the warpgroup's own tile of a guarded stage, and `b` is the next stage
/// of a pipeline.
pub struct Abt<'p, E: Element, const N: usize, const K: usize, const W: usize, const S: usize, By = Tma>(
    pub &'p mut Acc<1, N>,
    pub &'p StageGuard<'p, SharedTiles<E, 4, K, W>>,
    pub &'p mut Consumer<SharedTile<E, N, K>, S, By>,
);

/// The product `acc += a b`, where `b` is the first `N` of the `D` base tiles of columns of a pipeline's next
/// stage.
pub struct Ab<'p, E, const N: usize, const K: usize, const S: usize, By = Tma, const D: usize = N>(
    pub &'p mut Acc<1, N>,
    pub &'p AFrag<E, 1, K>,
    pub &'p mut Consumer<SharedTile<E, K, D>, S, By>,
);

/// Number of k-steps of `a` whose descriptors may stay in uniform registers from product to product.
/// Descriptors of other k-steps are computed for each product. A GPU has 63 uniform registers, and the
/// stages' descriptors use some of them. With more than 8 k-steps, no register is left.
const fn hoisted(k_steps: usize) -> usize {
    if k_steps > 8 { 0 } else { 4 }
}

/// A product that one of `W` warpgroups runs: either [`Abt`] or [`Ab`], and no other type.
///
/// Only [`Warpgroup::run`], [`Warpgroup::run_ping_pong`] and [`Warpgroup::overlap`] take the steps of a
/// product. A kernel therefore cannot release a stage that it has not read.
pub trait Product<const W: usize>: Issue<W> {}
impl<const W: usize, P: Issue<W>> Product<W> for P {}

/// Traits that only this crate can implement or call.
pub(crate) mod sealed {
    /// The steps of a product, in the order in which they run. Steps with preconditions are `unsafe`, because
    /// any code with a bound on [`super::Product`] can call them.
    ///
    /// # Safety
    /// - `issue` starts exactly one group. The group accesses only the values that the product borrows and
    ///   the pipeline's next stage.
    pub unsafe trait Issue<const W: usize> {
        /// The type of the accumulator.
        type Acc;
        /// Waits until the product's stage is full.
        fn wait(&self);
        /// Starts the product for warpgroup `group`.
        ///
        /// # Safety
        /// - The warpgroup is converged.
        /// - The stage is full.
        /// - `settle` follows before any use of the product's operands.
        unsafe fn issue(&mut self, group: u32);
        /// Waits until at most `LEFT` younger groups are in flight.
        ///
        /// # Safety
        /// - The warpgroup is converged.
        unsafe fn settle<const LEFT: u32>(&mut self);
        /// Releases the product's stage.
        ///
        /// # Safety
        /// - The caller calls this function once, after `wait` and `settle`.
        unsafe fn release(&mut self);
        /// The accumulator.
        fn acc(&mut self) -> &mut Self::Acc;
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the tile of `a` and the stage.
unsafe impl<
    E: WarpgroupCore,
    const N: usize,
    const K: usize,
    const W: usize,
    const S: usize,
    By: TmaTransport,
> Issue<W> for Abt<'_, E, N, K, W, S, By>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait_full()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { self.issue_steps::<K>(group) }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0[0]) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        self.2.release()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

impl<E: WarpgroupCore, const N: usize, const K: usize, const W: usize, const S: usize, By: TmaTransport>
    Abt<'_, E, N, K, W, S, By>
{
    /// Starts the product of the first `C` k-steps.
    ///
    /// # Safety
    /// - The preconditions of [`Issue::issue`] hold.
    #[inline(always)]
    unsafe fn issue_steps<const C: usize>(&mut self, group: u32) {
        const { assert!(wgmma::has_width(N), "there is no product of this width") }
        let (a, b) = (self.1.tile(group).operand(), self.2.descriptor().operand());
        let anew = a.opaque();
        // SAFETY: the caller keeps the preconditions. Both tiles may be read: a guard keeps tile `a`, and
        // tile `b` has landed.
        unsafe {
            wgmma::fence();
            for k in 0..C {
                let a = if k < hoisted(C) { a } else { anew };
                let (a, b) =
                    (a + SharedTile::<E, 4, K>::along_rows(k), b + SharedTile::<E, N, K>::along_rows(k));
                E::abt(&mut self.0.0[0], a, b, k > 0);
            }
            wgmma::commit_group();
        }
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the registers of `a` and the stage.
unsafe impl<
    E: WarpgroupCore,
    const N: usize,
    const K: usize,
    const W: usize,
    const S: usize,
    By: TmaTransport,
    const D: usize,
> Issue<W> for Ab<'_, E, N, K, S, By, D>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.2.wait_full()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        const { assert!(wgmma::has_width(N) && N <= D, "there is no product of this width") }
        let b = self.2.descriptor().operand();
        // SAFETY: the caller keeps the preconditions; the stage has landed.
        unsafe {
            wgmma::fence();
            for k in 0..K {
                let b = b + SharedTile::<E, K, D>::along_columns(k);
                E::ab(&mut self.0.0[0], self.1.registers[k][0], b);
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { settle_ab::<LEFT, E, N, K>(self.0, self.1) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {
        self.2.release()
    }
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0
    }
}

/// Starts `acc += a b`, where the tile of `b` is in shared memory.
///
/// # Safety
/// - The warpgroup is converged. The tile may be read, and nobody writes it before [`settle_ab`].
/// - [`settle_ab`] follows before any use of `acc` and `a`.
#[inline(always)]
unsafe fn issue_ab<E: WarpgroupCore, const N: usize, const K: usize>(
    acc: &mut Acc<1, N>,
    a: &AFrag<E, 1, K>,
    b: Operand,
) {
    const { assert!(wgmma::has_width(N), "there is no product of this width") }
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        wgmma::fence();
        for k in 0..K {
            E::ab(&mut acc.0[0], a.registers[k][0], b + SharedTile::<E, K, N>::along_columns(k));
        }
        wgmma::commit_group();
    }
}

/// Waits until at most `LEFT` groups younger than that of [`issue_ab`] are in flight.
///
/// # Safety
/// - The warpgroup is converged.
#[inline(always)]
unsafe fn settle_ab<const LEFT: u32, E, const N: usize, const K: usize>(
    acc: &mut Acc<1, N>,
    a: &AFrag<E, 1, K>,
) {
    // SAFETY: the caller keeps the preconditions. The product reads `a` until this call.
    unsafe { wgmma::wait_group::<LEFT, N>(&mut acc.0[0]) }
    for k in 0..K {
        wgmma::hold(&a.registers[k][0]);
    }
}

impl<const W: usize> Warpgroup<W> {
    /// Runs a product to its end.
    #[inline(always)]
    pub fn run(&mut self, mut product: impl Product<W>) {
        product.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads, and the steps run in order.
        unsafe {
            product.issue(self.index);
            product.settle::<0>();
            product.release();
        }
    }

    /// Runs a product to its end, and `beside` while it is in flight.
    #[inline(always)]
    fn run_beside(&mut self, mut product: impl Product<W>, beside: impl FnOnce()) {
        product.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads, and the steps run in order.
        unsafe {
            product.issue(self.index);
            beside();
            product.settle::<0>();
            product.release();
        }
    }

    /// Runs a product to its end. The warpgroup issues the product in its ping-pong turn.
    #[inline(always)]
    pub fn run_ping_pong(&mut self, mut product: impl Product<W>) {
        product.wait();
        self.ping_pong.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads.
        unsafe { product.issue(self.index) };
        self.ping_pong.arrive();
        // SAFETY: as above; the steps come in order.
        unsafe {
            product.settle::<0>();
            product.release();
        }
    }

    /// Runs two products, which the warpgroup issues together in its ping-pong turn. `meanwhile` receives the
    /// first accumulator while the second product, and the products of other warpgroups, are in flight. After
    /// both products, `then` receives both accumulators and the second value that `meanwhile` returned, and
    /// makes the result. Both closures share `state`.
    ///
    /// The first value that `meanwhile` returns must be the same in all lanes of a warp, and should rarely be
    /// true; `then` receives it as its last argument. A branch on this value keeps the wait for the second
    /// product behind `meanwhile`: ptxas hoists a wait over independent instructions, but not over the edge
    /// of a basic block. The wait stands behind the branch, because warps of a warpgroup may take different
    /// arms, and all warps must execute the same `wgmma.wait_group` (compute-sanitizer's synccheck requires
    /// this).
    #[inline(always)]
    pub fn overlap<A: Product<W>, B: Product<W>, State, R, T>(
        &mut self,
        mut first: A,
        mut second: B,
        state: &mut State,
        meanwhile: impl FnOnce(&mut State, &mut A::Acc) -> (bool, R),
        then: impl FnOnce(&mut State, &A::Acc, &mut B::Acc, R, bool) -> T,
    ) -> T {
        first.wait();
        self.ping_pong.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads; both products are settled below, before their
        // borrows end.
        unsafe { first.issue(self.index) };
        second.wait();
        // SAFETY: the reason for `first` holds for `second` too.
        unsafe { second.issue(self.index) };
        self.ping_pong.arrive();
        // SAFETY: both products were issued, in this order.
        unsafe { overlapped::<W, _, _, _, _, _>(first, second, state, meanwhile, then) }
    }
}

/// Settles and releases two products in flight, as [`Warpgroup::overlap`] describes.
///
/// # Safety
/// - The warpgroup is converged. Both products were issued, the first one first, and no product since.
#[inline(always)]
unsafe fn overlapped<const W: usize, A: Product<W>, B: Product<W>, State, R, T>(
    mut first: A,
    mut second: B,
    state: &mut State,
    meanwhile: impl FnOnce(&mut State, &mut A::Acc) -> (bool, R),
    then: impl FnOnce(&mut State, &A::Acc, &mut B::Acc, R, bool) -> T,
) -> T {
    // SAFETY: the caller keeps the preconditions; the first product's steps come in order.
    unsafe {
        first.settle::<1>();
        first.release();
    }
    let (rare, value) = meanwhile(state, first.acc());
    if rare {
        cold_path();
        // SAFETY: `rare` is the same in all lanes, so all lanes reach this barrier.
        unsafe { warp::sync() }
    }
    // SAFETY: all lanes of a warp take the same branch, so the warpgroup is still converged.
    unsafe { second.settle::<0>() };
    let result = then(state, first.acc(), second.acc(), value, rare);
    // SAFETY: the second product's steps come in order.
    unsafe { second.release() };
    result
}
