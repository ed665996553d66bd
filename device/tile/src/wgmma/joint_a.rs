//! An A operand in shared memory that all warpgroups write together, and the product that reads it.
use crate::Warp;
use crate::group::Warpgroup;
use crate::layout;
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::{Specialized, StageGuard};
use crate::shared::{Place, SharedLayout, SharedTile, SharedTiles};
use crate::tma::TmaTile;
use crate::wgmma::sealed::Issue;
use contract::Element;
use core::marker::PhantomData;
use cuda_std::ldmatrix::stmatrix_x4_trans;
use cuda_std::math::opaque;
use cuda_std::{tma, wgmma};

/// Shared memory for two A operands of `R` base tiles of rows and `K` k-steps, of which each consumer warp
/// writes one k-step. If all warpgroups have the same four k-steps, the first one writes them. The warpgroups
/// write one operand while their products read the other one.
pub struct JointA<E, const R: usize, const K: usize> {
    base: u32,
    /// The operand that is written next: 0 or 1.
    next: u32,
    element: PhantomData<E>,
}

// SAFETY: the layout has two tiles.
unsafe impl<E: WarpgroupCore, const R: usize, const K: usize> Place for JointA<E, R, K> {
    const BYTES: usize = 2 * SharedTile::<E, R, K>::BYTES;
    const ALIGN: usize = SharedTile::<E, R, K>::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        JointA { base, next: 0, element: PhantomData }
    }
}

impl<E: WarpgroupCore, const R: usize, const K: usize> Specialized for JointA<E, R, K> {
    type Producer = ();
    type Converter = ();
    type Consumer = Self;
    const PRODUCERS: u32 = 1;
    #[inline(always)]
    unsafe fn init(&self, _: u32) {}
    #[inline(always)]
    unsafe fn producer(self, _: Warp) {}
    #[inline(always)]
    unsafe fn converter(self, _: Warp) {}
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> Self {
        self
    }
}

impl<E: WarpgroupCore, const R: usize, const K: usize> JointA<E, R, K> {
    /// Writes the transpose of a warp's fragment, the warp's k-step of the next operand. [`JointA::publish`]
    /// follows.
    #[inline(always)]
    pub(super) fn write<const W: usize>(&mut self, a: &AFrag<E, 1, R>, group: &Warpgroup<W>) {
        const { assert!(K == 4 * W || K == 4, "each warp writes a k-step, or those of the first warpgroup") }
        if K < 4 * W && group.index > 0 {
            return;
        }
        // This computes the addresses again for each operand: they would take registers in every step.
        let [row, chunk] = layout::rows_first(group.warp.forget_lane().lane);
        let chunk = chunk + opaque(group.warp.index) * 2;
        let base = self.base + self.next * SharedTile::<E, R, K>::BYTES as u32;
        for n in 0..R {
            let to = base + SharedTile::<E, R, K>::offset(n as u32 * 16 + row, chunk);
            // SAFETY: these are the warp's own columns. The last product that read them has ended: it ran
            // between the last two calls of `publish`. `Warpgroup` stands for converged warps.
            unsafe { stmatrix_x4_trans(to, a.registers[n][0]) }
        }
        tma::fence_proxy_async();
    }

    /// Waits until all warpgroups have written the next operand. Their products may then read it, and must
    /// end before the next call.
    #[inline(always)]
    pub(super) fn publish<const W: usize>(&mut self, group: &mut Warpgroup<W>) {
        group.wait_for_all();
        self.next ^= 1;
    }
}

/// The part of the product `a b` that the warpgroups share. Each warpgroup computes 64 rows of it.
#[derive(Clone, Copy)]
enum Shared {
    /// The columns: the operand has 64 rows.
    Columns,
    /// The rows: the operand has 64 rows per warpgroup.
    Rows,
    /// The rows of the transpose `b^T a^T`, for other operands.
    RowsOfTranspose,
}

impl Shared {
    /// Returns the part of a product of `r x d` base tiles that `w` warpgroups share, if each computes `h`
    /// base tiles of columns.
    const fn of(r: usize, h: usize, d: usize, w: usize) -> Self {
        match r {
            4 if h * w == d => Shared::Columns,
            _ if r == 4 * w && h == d => Shared::Rows,
            _ => {
                assert!(r == h && 4 * w == d, "no product has these parts");
                Shared::RowsOfTranspose
            }
        }
    }
}

/// The product `acc = a b`, or its transpose, of the published operand and a guarded stage, whose `T` tiles
/// of 64 rows lie one below the other. Each warpgroup computes its part ([`Shared`]), `H` base tiles of
/// columns.
pub(super) struct JointAb<
    'p,
    E: Element,
    const R: usize,
    const H: usize,
    const D: usize,
    const K: usize,
    const T: usize,
> {
    acc: &'p mut Acc<1, H>,
    /// The address of the operand.
    a: u32,
    b: &'p StageGuard<'p, SharedTiles<E, 4, D, T>>,
}

impl<'p, E: WarpgroupCore, const R: usize, const H: usize, const D: usize, const K: usize, const T: usize>
    JointAb<'p, E, R, H, D, K, T>
{
    #[inline(always)]
    pub(super) fn new(
        acc: &'p mut Acc<1, H>,
        a: &JointA<E, R, K>,
        b: &'p StageGuard<'p, SharedTiles<E, 4, D, T>>,
    ) -> Self {
        JointAb { acc, a: a.base + (a.next ^ 1) * SharedTile::<E, R, K>::BYTES as u32, b }
    }
}

// SAFETY: `issue` starts one group, which accesses the accumulator, the operand and the stage.
unsafe impl<
    E: WarpgroupCore,
    const R: usize,
    const H: usize,
    const D: usize,
    const K: usize,
    const T: usize,
    const W: usize,
> Issue<W> for JointAb<'_, E, R, H, D, K, T>
{
    type Acc = Acc<1, H>;
    #[inline(always)]
    fn wait(&self) {}
    #[inline(always)]
    unsafe fn issue(&mut self, group: u32) {
        const { assert!(wgmma::has_width(H), "there is no product of this width") }
        const { assert!(K == 4 * T, "the stage has a row for each column of the operand") }
        // A warpgroup's offset is a part of the address, so the upper halves of the descriptors are
        // constants.
        let part = |units: u64| group * (units * 16) as u32;
        let shared = const { Shared::of(R, H, D, W) };
        let (a, b) = match shared {
            Shared::Rows => (self.a + part(SharedTile::<E, R, K>::along_columns(4)), self.b.address(0)),
            Shared::Columns => (self.a, self.b.address(0) + part(SharedTile::<E, 4, D>::along_rows(H))),
            Shared::RowsOfTranspose => {
                (self.a, self.b.address(0) + part(SharedTile::<E, 4, D>::along_rows(4)))
            }
        };
        // LLVM would compute the operands of all k-steps before the loop, and keep them in registers.
        let a = SharedTile::<E, R, K>::descriptor(a).operand().opaque();
        let b = SharedTiles::<E, 4, D, T>::descriptor(b).operand();
        let b = if matches!(shared, Shared::Rows) { b } else { b.opaque() };
        let acc = &mut self.acc.0[0];
        // SAFETY: the caller keeps the preconditions. The operand is published, and the stage has landed.
        unsafe {
            wgmma::fence();
            for k in 0..K {
                let b = b
                    + (k / 4) as u64
                        * const { SharedTile::<E, 4, D>::bytes(SharedTile::<E, 4, D>::BYTES as u32) }
                    + SharedTile::<E, 4, D>::along_columns(k % 4);
                let a = a + SharedTile::<E, R, K>::along_rows(k);
                match shared {
                    Shared::RowsOfTranspose => E::at_bt(acc, b, a, k > 0),
                    _ => E::ab_shared(acc, a, b, k > 0),
                }
            }
            wgmma::commit_group();
        }
    }
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, H>(&mut self.acc.0[0]) }
    }
    #[inline(always)]
    unsafe fn release(&mut self) {}
    #[inline(always)]
    fn acc(&mut self) -> &mut Acc<1, H> {
        self.acc
    }
}
