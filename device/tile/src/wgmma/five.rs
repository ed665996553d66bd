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
use crate::group::Warpgroup;
use crate::mma::{AFrag, Acc, WarpgroupCore};
use crate::pipeline::StageGuard;
use crate::shared::SharedTiles;
use crate::tma::ValuedTile;
use crate::wgmma::JointA;
use crate::wgmma::guarded::{GuardedAb, GuardedAbt};
use crate::wgmma::joint_a::JointAb;
use crate::wgmma::sealed::Issue;
use contract::Element;
use core::hint::cold_path;
use cuda_std::math::opaque;
use cuda_std::warp;

/// A tile of 64 rows for each of `W` warpgroups, which the block keeps.
pub type KeptRows<'s, E, const D: usize, const W: usize> = StageGuard<'s, SharedTiles<E, 4, D, W>>;
/// A stage of `N` base tiles of rows, with one value per row.
pub type ValuedStage<'s, E, const N: usize, const D: usize> = StageGuard<'s, ValuedTile<E, N, D>>;

/// The products of one step later: `dk += ds q`, after which the stage is released, and dQ of the same dS.
pub struct Late<'p, E: Element, const N: usize, const D: usize> {
    /// The sum.
    pub dk: &'p mut Acc<1, D>,
    /// dS of the last step.
    pub ds: &'p AFrag<E, 1, N>,
    /// The stage of the last step.
    pub q: ValuedStage<'p, E, N, D>,
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
pub struct Step<'p, E: Element, const N: usize, const D: usize, const W: usize> {
    /// The first kept tile.
    pub k: &'p KeptRows<'p, E, D, W>,
    /// The second kept tile.
    pub v: &'p KeptRows<'p, E, D, W>,
    /// The first stage.
    pub q: &'p ValuedStage<'p, E, N, D>,
    /// The second stage.
    pub d_o: &'p ValuedStage<'p, E, N, D>,
    /// The sum of the products of P and the second stage.
    pub dv: &'p mut Acc<1, D>,
    /// The number of rows of the kept tiles that exist, or a larger number. dS of all other rows becomes 0:
    /// dQ is a sum over all rows, where infinity times 0 is not 0.
    pub rows: u32,
    /// The order of the products, which must be a constant.
    pub order: StepOrder,
    /// False, but the compiler must not know it. It ends basic blocks, over which ptxas hoists no wait.
    pub never: bool,
}

/// Ends a basic block: see [`Step::never`].
///
/// # Safety
/// - All lanes of the warp have the same `never`.
#[inline(always)]
unsafe fn end_block(never: bool) {
    if never {
        cold_path();
        // SAFETY: the caller keeps the precondition.
        unsafe { warp::sync() }
    }
}

impl<const W: usize> Warpgroup<W> {
    /// Runs a step: the products of `step`, and those of the last step, if there is one. `add` receives dQ of
    /// the last step. `p_of` makes P of S and may change S. `ds_of` makes dS of both accumulators and P.
    /// Returns dS. [`Step::never`] is the same in all lanes.
    #[inline(always)]
    pub fn five_products<E: WarpgroupCore, const N: usize, const D: usize, const M: usize, const H: usize>(
        &mut self,
        late: Option<Late<'_, E, N, D>>,
        add: impl FnOnce(&mut Acc<1, H>, &mut Self),
        step: Step<'_, E, N, D, W>,
        p_of: impl FnOnce(&mut Acc<1, N>) -> AFrag<E, 1, N>,
        ds_of: impl FnOnce(&Acc<1, N>, &Acc<1, N>, &AFrag<E, 1, N>) -> AFrag<E, 1, N>,
        joint: &mut JointA<E, N, M>,
    ) -> AFrag<E, 1, N> {
        let Step { k, v, q, d_o, dv, rows, order, never } = step;
        let (mut acc_s, mut acc_t) = (Acc::unset(), Acc::unset());
        let (mut s, mut t) = (GuardedAbt(&mut acc_s, k, q), GuardedAbt(&mut acc_t, v, d_o));
        // SAFETY: `Warpgroup` stands for 128 converged threads, and `never` is the same in all of them. The
        // steps of each product run in order, and every product ends within this call.
        unsafe {
            if let Some(Late { dk, ds, q: last }) = late {
                let mut acc_dq = Acc::<1, H>::unset();
                let mut dq = JointAb::new(&mut acc_dq, joint, k);
                let mut dk = GuardedAb(dk, ds, &last);
                dq.issue(self.index);
                Issue::<W>::issue(&mut dk, self.index);
                dq.settle::<1>();
                add(dq.acc(), self);
                end_block(never);
                s.issue(self.index);
                if order == StepOrder::Together {
                    t.issue(self.index);
                    Issue::<W>::settle::<2>(&mut dk);
                } else {
                    Issue::<W>::settle::<1>(&mut dk);
                }
            } else {
                s.issue(self.index);
                if order == StepOrder::Together {
                    t.issue(self.index);
                }
            }
            if order == StepOrder::Wide {
                t.issue(self.index);
            }
            if order == StepOrder::Apart {
                s.settle::<0>();
            } else {
                s.settle::<1>();
            }
            let p = p_of(s.acc());
            if order == StepOrder::Apart {
                end_block(never);
                t.issue(self.index);
            }
            let mut dv = GuardedAb(dv, &p, d_o);
            Issue::<W>::issue(&mut dv, self.index);
            t.settle::<1>();
            if order != StepOrder::Together {
                Issue::<W>::settle::<0>(&mut dv);
            }
            let mut ds = ds_of(s.acc(), t.acc(), &p);
            end_block(never);
            if rows < W as u32 * 64 {
                // This computes the warp's number again in each step: it would take a register.
                let before = opaque(self.warp.index) * 16;
                ds.keep_rows_before(rows as i32 - before as i32, self.warp.forget_lane());
            }
            joint.write(&ds, self);
            if order == StepOrder::Together {
                Issue::<W>::settle::<0>(&mut dv);
            }
            joint.publish(self);
            ds
        }
    }

    /// Runs the products of the last step. `beside` runs beside them. All warpgroups have then read the kept
    /// tiles.
    #[inline(always)]
    pub fn two_products<E: WarpgroupCore, const N: usize, const D: usize, const M: usize, const H: usize>(
        &mut self,
        late: Late<'_, E, N, D>,
        k: &KeptRows<'_, E, D, W>,
        add: impl FnOnce(&mut Acc<1, H>, &mut Self),
        joint: &mut JointA<E, N, M>,
        beside: impl FnOnce(&mut Self),
    ) {
        let Late { dk, ds, q } = late;
        let mut acc_dq = Acc::<1, H>::unset();
        let mut dq = JointAb::new(&mut acc_dq, joint, k);
        let mut dk = GuardedAb(dk, ds, &q);
        // SAFETY: as in `five_products`.
        unsafe {
            dq.issue(self.index);
            Issue::<W>::issue(&mut dk, self.index);
            beside(self);
            dq.settle::<1>();
            add(dq.acc(), self);
            Issue::<W>::settle::<0>(&mut dk);
        }
        drop(q);
        self.wait_for_all();
    }
}
