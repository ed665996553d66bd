//! Five products per stage, as the gradients of a product of three matrices need them. A block keeps two
//! tiles of rows, `k` and `v`, and takes stages of two tiles, `q` and `d_o`. With P and dS made from
//! accumulators:
//!
//! | product | reads | runs |
//! |---|---|---|
//! | S = K Q^T, T = V dO^T | both stages | first |
//! | dV += P dO | P in registers | beside the computation of dS, or before ([`StepOrder`]) |
//! | dQ = dS^T K | dS of all warpgroups in shared memory ([`JointA`]) | when dS is computed |
//! | dK += dS Q | dS in registers | behind dQ, beside the additions to dQ's sums |
use crate::Warp;
use crate::group::Warpgroup;
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::StageGuard;
use crate::shared::SharedTiles;
use crate::tma::ValuedTile;
use crate::wgmma::JointA;
use crate::wgmma::guarded::{GuardedAb, GuardedAbt};
use crate::wgmma::joint_a::JointAb;
use crate::wgmma::sealed::Issue;
use contract::{Element, FastDiv};
use core::hint::cold_path;
use cuda_std::math::opaque;
use cuda_std::{thread, warp};

/// The tiles that the block keeps: a tile of 64 rows for each warpgroup, or one tile for all of them, whose
/// columns of sums they share.
pub type KeptRows<'s, E, const D: usize, const T: usize> = StageGuard<'s, SharedTiles<E, 4, D, T>>;
/// A stage of `N` base tiles of rows, with one value per row.
pub type ValuedStage<'s, E, const N: usize, const D: usize> = StageGuard<'s, ValuedTile<E, N, D>>;

/// The order of a step's products. More products in flight take more registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StepOrder {
    /// T runs beside S, and the product with P beside the computation of dS and beside dQ.
    Together,
    /// For warpgroups that share columns: the product with P ends before dQ starts.
    Columns,
    /// For wide stages: the product with P ends before dS is computed.
    Wide,
    /// For modified scores: T starts when P is computed, and the product with P ends before dS is computed.
    Apart,
}

/// The operands and the sums of a step. Columns behind `depths` are padding: zeros.
pub struct Step<
    'p,
    E: Element,
    const N: usize,
    const D: usize,
    const C: usize,
    const V: usize,
    const T: usize,
> {
    /// The first kept tile.
    pub k: &'p KeptRows<'p, E, D, T>,
    /// The second kept tile.
    pub v: &'p KeptRows<'p, E, D, T>,
    /// The first stage.
    pub q: &'p ValuedStage<'p, E, N, D>,
    /// The second stage.
    pub d_o: &'p ValuedStage<'p, E, N, D>,
    /// The sum of the products of P and the second stage.
    pub dv: &'p mut Acc<1, V>,
    /// The sum of the products of dS and the first stage.
    pub dk: &'p mut Acc<1, C>,
    /// Base tiles of columns of the first and of the second kept tile that exist, at most `D`: constants.
    pub depths: [usize; 2],
    /// The number of rows of the kept tiles that exist, or a larger number. dS of all other rows becomes 0:
    /// dQ is a sum over all rows, where infinity times 0 is not 0.
    pub rows: u32,
    /// The order of the products, which must be a constant.
    pub order: StepOrder,
    /// Ends basic blocks.
    pub never: Never,
}

/// False in all threads, but LLVM does not know it. If ptxas does not know it either, a branch on it ends a
/// basic block, over which ptxas hoists no wait.
#[derive(Clone, Copy)]
pub struct Never(bool);

impl Never {
    /// Compares the grid's size with 0. It takes no register. ptxas knows that no grid is empty, so it
    /// removes the branch.
    #[inline(always)]
    pub fn of_grid() -> Self {
        Never(opaque(thread::grid_dim_x()) == 0)
    }

    /// Compares the lane's number with one that is at least 32, because no divisor of a kernel's parameters
    /// is 0. ptxas keeps the branch. Without it, ptxas of CUDA 12.8 crashes on the products of head dim 128;
    /// with it, ptxas of CUDA 12.4 loses descriptors of head dim 64.
    #[inline(always)]
    pub fn of_lane(divisor: FastDiv, warp: Warp) -> Self {
        Never(opaque(warp.lane) == divisor.get() + 31)
    }

    /// Ends a basic block.
    ///
    /// # Safety
    /// - The warp has converged.
    #[inline(always)]
    unsafe fn end_block(self) {
        if self.0 {
            cold_path();
            // SAFETY: no grid is empty, and no lane has a number above 31, so no lane of the warp is here.
            unsafe { warp::sync() }
        }
    }
}

impl<const W: usize> Warpgroup<W> {
    /// Runs a step. `p_of` makes P of S and may change S. `ds_of` makes dS of both accumulators and P. `add`
    /// receives dQ.
    #[inline(always)]
    pub fn five_products<
        E: WarpgroupCore,
        const N: usize,
        const D: usize,
        const C: usize,
        const V: usize,
        const M: usize,
        const H: usize,
        const T: usize,
    >(
        &mut self,
        joint: &mut JointA<E, N, M>,
        step: Step<'_, E, N, D, C, V, T>,
        p_of: impl FnOnce(&mut Acc<1, N>) -> AFrag<E, 1, N>,
        ds_of: impl FnOnce(&Acc<1, N>, &Acc<1, N>, &AFrag<E, 1, N>) -> AFrag<E, 1, N>,
        add: impl FnOnce(&mut Acc<1, H>, &mut Self),
    ) {
        let Step { k, v, q, d_o, dk, dv, depths, rows, order, never } = step;
        let (mut acc_s, mut acc_t) = (Acc::unset(), Acc::unset());
        let [of_s, of_t] = depths.map(|depth| depth.min(D));
        let (mut s, mut t) = (GuardedAbt(&mut acc_s, k, q, of_s), GuardedAbt(&mut acc_t, v, d_o, of_t));
        // SAFETY: `Warpgroup` stands for 128 converged threads. The steps of each product run in order, and
        // every product ends within this call.
        unsafe {
            Issue::<W>::issue(&mut s, self.index);
            if order == StepOrder::Apart {
                Issue::<W>::settle::<0>(&mut s);
            } else {
                Issue::<W>::issue(&mut t, self.index);
                Issue::<W>::settle::<1>(&mut s);
            }
            let p = p_of(Issue::<W>::acc(&mut s));
            if order == StepOrder::Apart {
                never.end_block();
                Issue::<W>::issue(&mut t, self.index);
            }
            // Nobody may read the registers of a product in flight.
            let kept = if order == StepOrder::Together { p.copied() } else { p };
            let mut dv = GuardedAb::<_, _, _, _, T>(dv, &p, d_o);
            Issue::<W>::issue(&mut dv, self.index);
            Issue::<W>::settle::<1>(&mut t);
            if matches!(order, StepOrder::Wide | StepOrder::Apart) {
                Issue::<W>::settle::<0>(&mut dv);
            }
            let mut ds = ds_of(Issue::<W>::acc(&mut s), Issue::<W>::acc(&mut t), &kept);
            never.end_block();
            if rows < T as u32 * 64 {
                // This computes the warp's number again in each step: it would take a register.
                let warp = opaque(self.warp.index);
                let before = if T == 1 { warp % 4 } else { warp } * 16;
                ds.keep_rows_before(rows as i32 - before as i32, self.warp.forget_lane());
            }
            joint.write(&ds, self);
            if order == StepOrder::Columns {
                Issue::<W>::settle::<0>(&mut dv);
            }
            joint.publish(self);
            let mut acc_dq = Acc::<1, H>::unset();
            let mut dq = JointAb::new(&mut acc_dq, joint, k);
            let mut dk = GuardedAb::<_, _, _, _, T>(dk, &ds, q);
            Issue::<W>::issue(&mut dq, self.index);
            Issue::<W>::issue(&mut dk, self.index);
            if order == StepOrder::Together {
                Issue::<W>::settle::<2>(&mut dv);
            }
            Issue::<W>::settle::<1>(&mut dq);
            add(Issue::<W>::acc(&mut dq), self);
            Issue::<W>::settle::<0>(&mut dk);
        }
    }
}
