//! Two warpgroups that take turns. In its turn, a warpgroup reads the operand that the other warpgroup made,
//! and makes the next operand.
//!
//! The reader of an operand is the writer of the next one. There is therefore one place, and the barrier that
//! passes the turn is the only barrier of a turn. Each warp reads and writes its own rows of the operand.
use crate::Warp;
use crate::group::Warpgroup;
use crate::layout;
use crate::mma::{AFrag, Acc, RowVec, WarpgroupCore};
use crate::pipeline::{Phased, StageToken};
use crate::shared::{Place, SharedLayout, SharedTile};
use crate::tma::TmaTile;
use crate::wgmma::sealed::Issue;
use crate::wgmma::{Product, overlapped};
use core::marker::PhantomData;
use cuda_std::ldmatrix::stmatrix_x4;
use cuda_std::memory::{ld_shared_b32, st_shared_b32};
use cuda_std::{tma, wgmma};

/// Shared memory for an A operand of 64 rows and `K` k-steps, with one value per row.
pub struct OperandExchange<E, const K: usize> {
    base: u32,
    element: PhantomData<E>,
}

// SAFETY: the layout has the operand and 64 words.
unsafe impl<E: WarpgroupCore, const K: usize> Place for OperandExchange<E, K> {
    const BYTES: usize = SharedTile::<E, 4, K>::BYTES + layout::PANEL_ALIGN;
    const ALIGN: usize = SharedTile::<E, 4, K>::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        OperandExchange { base, element: PhantomData }
    }
}

impl<E: WarpgroupCore, const K: usize> Phased for OperandExchange<E, K> {
    #[inline(always)]
    unsafe fn init(&self) {}
    #[inline(always)]
    unsafe fn end(&self) {}
}

impl<E: WarpgroupCore, const K: usize> OperandExchange<E, K> {
    /// The address of the value of this lane's first row; the value of its second row lies 32 bytes behind.
    #[inline(always)]
    fn values_at(&self, warp: Warp) -> u32 {
        let row = warp.index % 4 * 16 + warp.lane / 4;
        self.base + SharedTile::<E, 4, K>::BYTES as u32 + row * 4
    }

    /// The values of this warp's rows. This warpgroup has the turn.
    #[inline(always)]
    fn values(&self, warp: Warp) -> RowVec<1> {
        // SAFETY: the other warpgroup wrote the words before it passed the turn.
        RowVec([[0, 32].map(|at| f32::from_bits(unsafe { ld_shared_b32(self.values_at(warp) + at) }))])
    }

    /// Writes an operand and its values, and passes the turn. This warpgroup has the turn, and its products
    /// have read the previous operand.
    #[inline(always)]
    fn pass(&mut self, operand: &AFrag<E, 1, K>, values: RowVec<1>, group: &mut Warpgroup<2>) {
        let warp = group.warp.forget_lane();
        let [row, chunk] = layout::columns_first(warp.lane);
        let row = warp.index % 4 * 16 + row;
        for k in 0..K {
            let to = self.base + SharedTile::<E, 4, K>::offset(row, 2 * k as u32 + chunk);
            // SAFETY: the warp writes its own rows. `Warpgroup` stands for converged warps.
            unsafe { stmatrix_x4(to, operand.registers[k][0]) }
        }
        if warp.lane.is_multiple_of(4) {
            for r in 0..2 {
                // SAFETY: these are the words of the warp's own rows.
                unsafe { st_shared_b32(self.values_at(warp) + 32 * r as u32, values.0[0][r].to_bits()) }
            }
        }
        tma::fence_proxy_async();
        group.ping_pong.arrive();
    }
}

/// The product `acc += p b`, where `p` is the operand that the other warpgroup passed, and `b` is a kept
/// stage.
pub(super) struct AbPassed<'p, E, const N: usize, const K: usize>(
    pub(super) &'p mut Acc<1, N>,
    pub(super) &'p StageToken<SharedTile<E, K, N>>,
);

/// [`AbPassed`] in a turn.
struct InTurn<'p, E, const N: usize, const K: usize>(AbPassed<'p, E, N, K>, &'p OperandExchange<E, K>);

// SAFETY: `issue` starts one group, which accesses the accumulator, the operand and the stage.
unsafe impl<E: WarpgroupCore, const N: usize, const K: usize, const W: usize> Issue<W>
    for InTurn<'_, E, N, K>
{
    type Acc = Acc<1, N>;
    #[inline(always)]
    fn wait(&self) {
        self.0.1.wait()
    }
    #[inline(always)]
    unsafe fn issue(&mut self, _: u32) {
        const { assert!(wgmma::has_width(N), "there is no product of this width") }
        let a = SharedTile::<E, 4, K>::descriptor(self.1.base).operand();
        let b = self.0.1.descriptor().operand();
        // SAFETY: the caller keeps the preconditions. The operand was written and fenced, and its barrier has
        // passed; the stage has landed.
        unsafe {
            wgmma::fence();
            for k in 0..K {
                let b = b + SharedTile::<E, K, N>::along_columns(k);
                E::ab_shared(&mut self.0.0.0[0], a + SharedTile::<E, 4, K>::along_rows(k), b, true);
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, N>(&mut self.0.0.0[0]) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {}
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, N> {
        self.0.0
    }
}

/// This warpgroup's turn: the right to write the next operand.
pub(super) struct Turn(());

impl Warpgroup<2> {
    /// The first turn of all. Warpgroup 0 takes it once.
    #[inline(always)]
    pub(super) fn first_turn(&mut self) -> Turn {
        self.ping_pong.wait();
        Turn(())
    }

    /// Runs `product`, makes an operand and its values from the product's accumulator, and passes both.
    /// Returns the operand. `beside` runs while the product is in flight.
    #[inline(always)]
    pub(super) fn pass<E: WarpgroupCore, A: Product<2>, const K: usize>(
        &mut self,
        _: Turn,
        exchange: &mut OperandExchange<E, K>,
        mut product: A,
        beside: impl FnOnce(),
        make: impl FnOnce(&mut A::Acc) -> (AFrag<E, 1, K>, RowVec<1>),
    ) -> AFrag<E, 1, K> {
        product.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads; the steps run in order.
        unsafe {
            product.issue(self.index);
            beside();
            product.settle::<0>();
            product.release();
        }
        let (operand, values) = make(product.acc());
        exchange.pass(&operand, values, self);
        operand
    }

    /// Waits for the turn. `adopt` gets the accumulator of `passed` and the values that the other warpgroup
    /// passed, and `passed` runs to its end. `beside` runs while `passed` is in flight.
    #[inline(always)]
    pub(super) fn receive<E: WarpgroupCore, State, const N: usize, const K: usize>(
        &mut self,
        exchange: &OperandExchange<E, K>,
        passed: AbPassed<'_, E, N, K>,
        state: &mut State,
        adopt: impl FnOnce(&mut State, &mut Acc<1, N>, RowVec<1>),
        beside: impl FnOnce(),
    ) -> Turn {
        self.ping_pong.wait();
        adopt(state, passed.0, exchange.values(self.warp));
        self.run_beside(InTurn(passed, exchange), beside);
        Turn(())
    }

    /// [`Warpgroup::receive`] and [`Warpgroup::pass`] in one turn: `first` is in flight while the warpgroup
    /// waits for its turn, and `passed` runs beside `meanwhile`. `meanwhile` and `then` run as in
    /// [`Warpgroup::overlap`], and make an operand and its values, which are passed. Returns the operand.
    ///
    /// If `settles`, `first` ends before `adopt`. In kernels that convert stages, ptxas does not see that
    /// `first` leaves the accumulator of `passed` alone, and would insert this wait. The tensor cores run
    /// `first` before `passed` in any case.
    #[expect(clippy::too_many_arguments, reason = "two products, and the three steps beside them")]
    #[inline(always)]
    pub(super) fn overlapped_turn<
        E: WarpgroupCore,
        A: Product<2>,
        State,
        R,
        const N: usize,
        const K: usize,
    >(
        &mut self,
        exchange: &mut OperandExchange<E, K>,
        mut first: A,
        passed: AbPassed<'_, E, N, K>,
        state: &mut State,
        settles: bool,
        adopt: impl FnOnce(&mut State, &mut Acc<1, N>, RowVec<1>),
        meanwhile: impl FnOnce(&mut State, &mut A::Acc) -> (bool, R),
        then: impl FnOnce(&mut State, &A::Acc, &mut Acc<1, N>, R, bool) -> (AFrag<E, 1, K>, RowVec<1>),
    ) -> AFrag<E, 1, K> {
        first.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads; `overlapped` settles the product.
        unsafe { first.issue(self.index) };
        self.ping_pong.wait();
        if settles {
            // SAFETY: the product was issued; `overlapped` waits again, to no effect.
            unsafe { first.settle::<0>() }
        }
        adopt(state, passed.0, exchange.values(self.warp.forget_lane()));
        let mut second = InTurn(passed, exchange);
        Issue::<2>::wait(&second);
        // SAFETY: as above.
        let (operand, values) = unsafe {
            Issue::<2>::issue(&mut second, self.index);
            overlapped::<2, _, _, _, _, _>(first, second, state, meanwhile, then)
        };
        exchange.pass(&operand, values, self);
        operand
    }
}
