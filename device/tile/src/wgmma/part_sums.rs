//! Sums of products of e4m3 in registers, for accumulators whose total has no place in shared memory.
use crate::group::Warpgroup;
use crate::mma::{Acc, ByteFrag, RowVec};
use crate::pipeline::Consumer;
use crate::shared::SharedTile;
use crate::tma::TmaTransport;
use crate::wgmma::sealed::Issue;
use crate::wgmma::{AbtBytes, ByteSums, MOST_ROWS};
use contract::{E4m3, FastDiv};
use cuda_std::math::in_order;
use cuda_std::wgmma;

/// Base tiles of columns of a part: two parts are in flight, in 64 registers.
const PART: usize = 4;

/// Sums in registers. The tensor core computes the product of one stage for four base tiles of columns at
/// a time, from zero, and the warpgroup adds it in f32 while the next part is in flight.
///
/// ptxas moves these additions behind later products, and then spills. A product over the registers of an
/// earlier part, which it may add to at run time, must stand behind the additions that read them.
pub struct PartSums<const D: usize> {
    acc: Acc<1, D>,
    /// 0, which the compilers do not know.
    never: u32,
}

impl<const D: usize> PartSums<D> {
    /// Starts the product of part `part`, from zero: `never` is 0. The first two parts have registers of
    /// their own.
    ///
    /// # Safety
    /// - The warpgroup is converged, and the stage is full.
    /// - [`PartSums::settle`] follows before any use of `to` and `a`.
    #[inline(always)]
    unsafe fn issue<const K: usize, const S: usize, By: TmaTransport>(
        to: &mut Acc<1, PART>,
        a: &ByteFrag<1, K>,
        b: &Consumer<SharedTile<E4m3, D, K>, S, By>,
        part: usize,
        never: u32,
    ) {
        let b = b.descriptor().operand() + SharedTile::<E4m3, D, K>::along_columns(part * PART);
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            wgmma::fence();
            for k in 0..K / 2 {
                let b = b + SharedTile::<E4m3, D, K>::along_rows(2 * k);
                match part {
                    2.. if k == 0 => wgmma::mma_async_ab_e4m3_if(&mut to.0[0], a.k_step(k, 0), b, never),
                    _ => wgmma::mma_async_ab_e4m3(&mut to.0[0], a.k_step(k, 0), b, k > 0),
                }
            }
            wgmma::commit_group();
        }
    }

    /// Waits until at most `LEFT` younger parts are in flight, and adds part `part`.
    ///
    /// # Safety
    /// - The warpgroup is converged.
    #[inline(always)]
    unsafe fn settle<const LEFT: u32>(&mut self, of: &mut Acc<1, PART>, part: usize) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { wgmma::wait_group::<LEFT, PART>(&mut of.0[0]) }
        for n in 0..PART {
            for h in 0..2 {
                for (i, sum) in self.acc.0[0][part * PART + n][h].iter_mut().enumerate() {
                    *sum = in_order(*sum + of.0[0][n][h][i]);
                }
            }
        }
    }

    /// Adds the product of `a` and the next stage of `b`, which is full, and releases the stage. Returns the
    /// registers of the last part.
    ///
    /// # Safety
    /// - The warpgroup is converged, and no product is in flight.
    #[inline(always)]
    unsafe fn add_parts<const K: usize, const S: usize, By: TmaTransport>(
        &mut self,
        a: &ByteFrag<1, K>,
        b: &mut Consumer<SharedTile<E4m3, D, K>, S, By>,
    ) -> Acc<1, PART> {
        const { assert!(D == 4 * PART, "a product has four parts, of which two are in flight") }
        const { assert!(K as u32 * 16 <= MOST_ROWS && K.is_multiple_of(2), "the tensor core adds too much") }
        let [mut even, mut odd] = [Acc::unset(), Acc::unset()];
        // LLVM keeps some registers in pairs of 64 bits. It must take the pairs apart before the fence.
        for k in 0..K / 2 {
            wgmma::hold(&a.k_step(k, 0));
        }
        // SAFETY: the caller keeps the preconditions; each part is settled before its registers are used.
        unsafe {
            Self::issue(&mut even, a, b, 0, self.never);
            Self::issue(&mut odd, a, b, 1, self.never);
            self.settle::<1>(&mut even, 0);
            Self::issue(&mut even, a, b, 2, self.never);
            self.settle::<1>(&mut odd, 1);
            Self::issue(&mut odd, a, b, 3, self.never);
            self.settle::<1>(&mut even, 2);
            self.settle::<0>(&mut odd, 3);
        }
        for k in 0..K / 2 {
            wgmma::hold(&a.k_step(k, 0));
        }
        b.release();
        odd
    }
}

/// The second product runs before the first one, because registers have no place for a part of it beside the
/// first one. The other warpgroups' products run while the warpgroup computes.
impl<const D: usize> ByteSums<D> for PartSums<D> {
    type Place<const W: usize> = ();

    #[inline(always)]
    fn new<const W: usize>((): (), divisor: FastDiv, _: &Warpgroup<W>) -> Self {
        // No divisor is 0.
        PartSums { acc: Acc::cleared(), never: u32::from(divisor.get() == 0) }
    }
    #[inline(always)]
    fn scale_rows(&mut self, by: &RowVec<1>) {
        self.acc.scale_rows(by)
    }
    #[inline(always)]
    fn take(&mut self) -> Acc<1, D> {
        core::mem::replace(&mut self.acc, Acc::cleared())
    }
    type Room<'s, const K: usize> = &'s mut Self;
    #[inline(always)]
    fn room<const K: usize>(&mut self) -> &mut Self {
        self
    }
    #[inline(always)]
    fn add<const W: usize, const K: usize, const S: usize, By: TmaTransport>(
        sums: &mut Self,
        (a, b): (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, By>),
        _: &mut Warpgroup<W>,
    ) {
        b.wait_full();
        // SAFETY: `Warpgroup` stands for 128 converged threads, and whoever has it has settled its products.
        unsafe { sums.add_parts(a, b) };
    }
    #[inline(always)]
    fn overlap<
        By: TmaTransport,
        ByB: TmaTransport,
        State,
        R,
        T,
        const W: usize,
        const K: usize,
        const S: usize,
    >(
        mut first: AbtBytes<'_, K, D, W, S, By>,
        sums: &mut Self,
        (a, b): (&ByteFrag<1, K>, &mut Consumer<SharedTile<E4m3, D, K>, S, ByB>),
        group: &mut Warpgroup<W>,
        state: &mut State,
        meanwhile: impl FnOnce(&mut State, &mut Acc<1, K>) -> (bool, R),
        then: impl FnOnce(&mut State, &Acc<1, K>, &mut Self, R, bool) -> T,
    ) -> T {
        b.wait_full();
        group.ping_pong.wait();
        // SAFETY: `Warpgroup` stands for 128 converged threads, and whoever has it has settled its products.
        let last = unsafe { sums.add_parts(a, b) };
        first.0.0[0].copy_from_slice(&last.0[0]);
        first.wait();
        // SAFETY: as above; the steps come in order.
        unsafe { first.issue_over(Some(sums.never), group.index) };
        group.ping_pong.arrive();
        // SAFETY: as above.
        unsafe {
            first.settle::<0>();
            first.release();
        }
        let (rare, value) = meanwhile(state, first.acc());
        then(state, first.acc(), sums, value, rare)
    }
}
