//! Five products per stage, as the gradients of a product of three matrices need them. A block keeps two
//! tiles of rows, `k` and `v`, and takes stages of two tiles, `q` and `d_o`. With P and dS made from
//! accumulators:
//!
//! | product | reads | runs |
//! |---|---|---|
//! | S = K Q^T, T = V dO^T | both stages | first |
//! | dV += P dO | P in registers | beside the computation of dS |
//! | dQ = dS^T K | dS of all warpgroups in shared memory ([`JointA`]) | one step later |
//! | dK += dS Q | dS in registers, the stage of the last step | one step later |
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

/// dS of a step, which all warpgroups have published in the joint operand. Only
/// [`Warpgroup::five_products`] makes one.
pub struct Ds<E, const N: usize, const M: usize> {
    fragment: AFrag<E, 1, N>,
    joint: JointA<E, N, M>,
}

/// The products of one step later: `dk += ds q`, after which the stage is released, and dQ of the same dS.
pub struct Late<'p, E: Element, const N: usize, const D: usize, const C: usize, const M: usize> {
    /// The sum.
    pub dk: &'p mut Acc<1, C>,
    /// dS of the last step.
    pub ds: Ds<E, N, M>,
    /// The stage of the last step.
    pub q: ValuedStage<'p, E, N, D>,
}

/// The step before this one, if there is one.
pub enum After<'p, E: Element, const N: usize, const D: usize, const C: usize, const M: usize> {
    /// Nothing: it is the first step.
    Nothing(JointA<E, N, M>),
    /// Another step, whose last products run in this step.
    Step(Late<'p, E, N, D, C, M>),
}

/// The order of a step's products. More products in flight take more registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StepOrder {
    /// dK, S and T run together, and the product with P beside the computation of dS.
    Together,
    /// For wide stages: T starts when dK has ended, and the product with P ends before dS is computed.
    Wide,
    /// For modified scores: T starts when P is computed, and the product with P ends before dS is computed.
    Apart,
}

/// The operands of a step, and the sum of its third product.
pub struct Step<'p, E: Element, const N: usize, const D: usize, const C: usize, const T: usize> {
    /// The first kept tile.
    pub k: &'p KeptRows<'p, E, D, T>,
    /// The second kept tile.
    pub v: &'p KeptRows<'p, E, D, T>,
    /// The first stage.
    pub q: &'p ValuedStage<'p, E, N, D>,
    /// The second stage.
    pub d_o: &'p ValuedStage<'p, E, N, D>,
    /// The sum of the products of P and the second stage.
    pub dv: &'p mut Acc<1, C>,
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
    /// Runs a step: the products of `step`, and those of the last step, if there is one. `add` receives dQ of
    /// the last step. `p_of` makes P of S and may change S. `ds_of` makes dS of both accumulators and P.
    /// Returns dS.
    #[inline(always)]
    pub fn five_products<
        E: WarpgroupCore,
        const N: usize,
        const D: usize,
        const C: usize,
        const M: usize,
        const H: usize,
        const T: usize,
    >(
        &mut self,
        after: After<'_, E, N, D, C, M>,
        add: impl FnOnce(&mut Acc<1, H>, &mut Self),
        step: Step<'_, E, N, D, C, T>,
        p_of: impl FnOnce(&mut Acc<1, N>) -> AFrag<E, 1, N>,
        ds_of: impl FnOnce(&Acc<1, N>, &Acc<1, N>, &AFrag<E, 1, N>) -> AFrag<E, 1, N>,
    ) -> Ds<E, N, M> {
        const { assert!(T == W && C == D || T == 1 && C * W == D, "warpgroups share rows, or columns") }
        let Step { k, v, q, d_o, dv, rows, order, never } = step;
        let (mut acc_s, mut acc_t) = (Acc::unset(), Acc::unset());
        let (mut s, mut t) = (GuardedAbt(&mut acc_s, k, q), GuardedAbt(&mut acc_t, v, d_o));
        // SAFETY: `Warpgroup` stands for 128 converged threads. The steps of each product run in order, and
        // every product ends within this call.
        unsafe {
            let mut joint = match after {
                After::Step(Late { dk, ds: Ds { fragment, joint }, q: last }) => {
                    let mut acc_dq = Acc::<1, H>::unset();
                    let mut dq = JointAb::new(&mut acc_dq, &joint, k);
                    let mut dk = GuardedAb(dk, &fragment, &last);
                    Issue::<W>::issue(&mut dq, self.index);
                    Issue::<W>::issue(&mut dk, self.index);
                    Issue::<W>::settle::<1>(&mut dq);
                    add(Issue::<W>::acc(&mut dq), self);
                    never.end_block();
                    Issue::<W>::issue(&mut s, self.index);
                    if order == StepOrder::Together {
                        Issue::<W>::issue(&mut t, self.index);
                        Issue::<W>::settle::<2>(&mut dk);
                    } else {
                        Issue::<W>::settle::<1>(&mut dk);
                    }
                    joint
                }
                After::Nothing(joint) => {
                    Issue::<W>::issue(&mut s, self.index);
                    if order == StepOrder::Together {
                        Issue::<W>::issue(&mut t, self.index);
                    }
                    joint
                }
            };
            if order == StepOrder::Wide {
                Issue::<W>::issue(&mut t, self.index);
            }
            if order == StepOrder::Apart {
                Issue::<W>::settle::<0>(&mut s);
            } else {
                Issue::<W>::settle::<1>(&mut s);
            }
            let p = p_of(Issue::<W>::acc(&mut s));
            if order == StepOrder::Apart {
                never.end_block();
                Issue::<W>::issue(&mut t, self.index);
            }
            let mut dv = GuardedAb(dv, &p, d_o);
            Issue::<W>::issue(&mut dv, self.index);
            Issue::<W>::settle::<1>(&mut t);
            if order != StepOrder::Together {
                Issue::<W>::settle::<0>(&mut dv);
            }
            let mut fragment = ds_of(Issue::<W>::acc(&mut s), Issue::<W>::acc(&mut t), &p);
            never.end_block();
            if rows < T as u32 * 64 {
                // This computes the warp's number again in each step: it would take a register.
                let warp = opaque(self.warp.index);
                let before = if T == 1 { warp % 4 } else { warp } * 16;
                fragment.keep_rows_before(rows as i32 - before as i32, self.warp.forget_lane());
            }
            joint.write(&fragment, self);
            if order == StepOrder::Together {
                Issue::<W>::settle::<0>(&mut dv);
            }
            joint.publish(self);
            Ds { fragment, joint }
        }
    }

    /// Runs the products of the last step. `beside` runs beside them. All warpgroups have then read the kept
    /// tiles and the joint operand, which this function returns.
    #[inline(always)]
    pub fn two_products<
        E: WarpgroupCore,
        const N: usize,
        const D: usize,
        const C: usize,
        const M: usize,
        const H: usize,
        const T: usize,
    >(
        &mut self,
        late: Late<'_, E, N, D, C, M>,
        k: &KeptRows<'_, E, D, T>,
        add: impl FnOnce(&mut Acc<1, H>, &mut Self),
        beside: impl FnOnce(&mut Self),
    ) -> JointA<E, N, M> {
        let Late { dk, ds: Ds { fragment, joint }, q } = late;
        let mut acc_dq = Acc::<1, H>::unset();
        let mut dq = JointAb::new(&mut acc_dq, &joint, k);
        let mut dk = GuardedAb(dk, &fragment, &q);
        // SAFETY: as in `five_products`.
        unsafe {
            Issue::<W>::issue(&mut dq, self.index);
            Issue::<W>::issue(&mut dk, self.index);
            beside(self);
            Issue::<W>::settle::<1>(&mut dq);
            add(Issue::<W>::acc(&mut dq), self);
            Issue::<W>::settle::<0>(&mut dk);
        }
        drop(q);
        self.wait_for_all();
        joint
    }
}
