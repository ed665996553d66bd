//! The seesaw: two warpgroups that take turns at stages, and that refill the stages themselves.
//!
//! Stage `n` belongs to warpgroup `n % 2`, which multiplies its rows with Q, and makes an operand and its
//! values from the product. Both warpgroups multiply the operand with their own part of the stage: the first
//! warpgroup with the left part, the second warpgroup with the first columns of the right part. The owner
//! passes operand and values to the other warpgroup.
//!
//! A warpgroup refills its own part of a stage. It is the part's last reader: it has multiplied the part, and
//! the other warpgroup has read it before it passed an operand. Only this file fills and reads the stages, so
//! a kernel cannot change this order.
//!
//! If copies have another form than products read, a warpgroup also converts its own parts, while a product
//! of the previous stage is in flight.
use crate::copy::{CpAsync, Transport};
use crate::exchange::PartOfRows;
use crate::group::{Refillers, Team, Warpgroup};
use crate::mma::{AFrag, Acc, RowVec, WarpgroupCore};
use crate::pipeline::{InFlight, Published, Refill, Refilled, Settle, StageToken};
use crate::shared::{SharedLayout, SharedTile};
use crate::wgmma::{AbOfToken, AbPassed, AbtOfTwo, OperandExchange, Turn};

/// The computation of a warpgroup in a [seesaw](Warpgroup::seesaw) of stages of `N` base tiles of rows. A
/// stage has a left part of `H` base tiles of columns, and a right part of `R`. The warpgroup's accumulator
/// has `H` base tiles of columns.
pub trait Seesaw<E: WarpgroupCore, const N: usize, const H: usize, const R: usize> {
    /// The transport of a stage's left part.
    type Left: Settle<SharedTile<E, N, H>>;
    /// The transport of a stage's right part.
    type Right: Settle<SharedTile<E, N, R>>;
    /// Number of stages, which is at least 1. Both warpgroups have the same number.
    fn count(&self) -> u32;
    /// Looks up what the sources need for stage `n`, or for a stage behind the last one. Stages come in
    /// order, from stage 1 on: the caller has looked up stage 0.
    fn look_up(&mut self, n: u32);
    /// The source of the left part of stage `n`, which is the latest stage that was looked up. Warpgroup 0
    /// takes the left parts of all stages: the part of its stage `n` after it has observed stage `n - 2`.
    fn left(&mut self, n: u32) -> impl Refill<SharedTile<E, N, H>, Self::Left>;
    /// The source of the right part of stage `n`, as `left`, for warpgroup 1.
    fn right(&mut self, n: u32) -> impl Refill<SharedTile<E, N, R>, Self::Right>;
    /// Observes the product of stage `n`, which belongs to this warpgroup, and may change it. The first
    /// result must be the same in all lanes of a warp, and should rarely be true. If it is true, the
    /// accumulator is scaled by the second result.
    fn observe(&mut self, product: &mut Acc<1, N>, n: u32) -> (bool, RowVec<1>);
    /// Makes the operand from the observed product.
    fn operand(&mut self, product: &Acc<1, N>) -> AFrag<E, 1, N>;
    /// The values that the operand passes on.
    fn values(&self) -> RowVec<1>;
    /// Adopts the values of the other warpgroup, before its operand is multiplied.
    fn adopt(&mut self, values: RowVec<1>, acc: &mut Acc<1, H>);
    /// Two values of each row, at the end.
    fn state(&self) -> [RowVec<1>; 2];
}

/// A stage's parts, which have `H` and `R` base tiles of columns, and the passed operand.
pub type SeesawStages<E, S, const N: usize, const H: usize, const R: usize> = (
    Refilled<SharedTile<E, N, H>, 2, <S as Seesaw<E, N, H, R>>::Left>,
    (Refilled<SharedTile<E, N, R>, 2, <S as Seesaw<E, N, H, R>>::Right>, OperandExchange<E, N>),
);

impl Warpgroup<2> {
    /// Runs this warpgroup's turns. Returns the warpgroup's accumulator, and its state.
    #[inline(always)]
    pub fn seesaw<
        E: WarpgroupCore,
        S: Seesaw<E, N, H, R>,
        const N: usize,
        const H: usize,
        const R: usize,
        const K: usize,
    >(
        mut self,
        q: InFlight<SharedTile<E, 4, K>, CpAsync<Team<2>>>,
        (left, (right, exchange)): SeesawStages<E, S, N, H, R>,
        steps: S,
    ) -> PartOfRows<H, 2> {
        let mut team = self.team();
        let mut side = Side { left, right, steps, group: self, acc: Acc::cleared() };
        side.fill(0);
        side.fill(1);
        // The copies of stages by threads go on.
        let q = q.publish(S::Left::BY_THREADS && S::Right::BY_THREADS, &mut team);
        convert((&side.left, &side.right), [0, side.steps.count()], &side.group.refillers());
        if side.group.index == 0 {
            side.even(&q, exchange);
        } else {
            side.odd(&q, exchange);
        }
        side.group.part(side.acc, side.steps.state())
    }
}

/// Converts the warpgroup's part of stage `n` of `count`: its left part, or its right part.
#[inline(always)]
fn convert<L: SharedLayout, R: SharedLayout, ByLeft: Settle<L>, ByRight: Settle<R>>(
    (left, right): (&Refilled<L, 2, ByLeft>, &Refilled<R, 2, ByRight>),
    [n, count]: [u32; 2],
    group: &Refillers,
) {
    if (ByLeft::CONVERTS || ByRight::CONVERTS) && n < count {
        match group.index() {
            0 => left.settle(n, group),
            _ => right.settle(n, group),
        }
    }
}

/// A warpgroup's side of the seesaw.
struct Side<E: WarpgroupCore, S: Seesaw<E, N, H, R>, const N: usize, const H: usize, const R: usize> {
    left: Refilled<SharedTile<E, N, H>, 2, S::Left>,
    right: Refilled<SharedTile<E, N, R>, 2, S::Right>,
    steps: S,
    group: Warpgroup<2>,
    acc: Acc<1, H>,
}

impl<E: WarpgroupCore, S: Seesaw<E, N, H, R>, const N: usize, const H: usize, const R: usize>
    Side<E, S, N, H, R>
{
    /// Fills this warpgroup's part of stage `n`.
    #[inline(always)]
    fn fill(&mut self, n: u32) {
        if n < self.steps.count() {
            match self.group.index {
                0 => self.left.fill(n, self.steps.left(n), &mut self.group),
                _ => self.right.fill(n, self.steps.right(n), &mut self.group),
            }
        }
        self.steps.look_up(n + 1);
    }

    /// The columns of stage `n` that this warpgroup multiplies with operands.
    #[inline(always)]
    fn own(&self, n: u32) -> StageToken<SharedTile<E, N, H>> {
        self.group.own([self.left.keep(n), self.right.keep(n).first_columns()])
    }

    /// Multiplies the operand of the warpgroup's stage `n`, and refills the stage. Warpgroup 1 converts its
    /// part of the next stage meanwhile: warpgroup 0 has done this beside the product of the stage with Q.
    #[inline(always)]
    fn multiply(&mut self, operand: &AFrag<E, 1, N>, n: u32) {
        let own = self.own(n);
        let (parts, place) = ((&self.left, &self.right), [n + 1, self.steps.count()]);
        let group = self.group.refillers();
        self.group.run_beside(AbOfToken(&mut self.acc, operand, &own), || {
            if group.index() == 1 {
                convert(parts, place, &group)
            }
        });
        self.fill(n + 2);
    }

    /// Waits for the operand of the other warpgroup's stage `n`, multiplies it, and refills the stage.
    /// Converts the warpgroup's part of the next stage meanwhile.
    #[inline(always)]
    fn receive(&mut self, exchange: &OperandExchange<E, N>, n: u32) -> Turn {
        let own = self.own(n);
        let passed = AbPassed(&mut self.acc, &own);
        let (parts, place) = ((&self.left, &self.right), [n + 1, self.steps.count()]);
        let group = self.group.refillers();
        let turn = self.group.receive(
            exchange,
            passed,
            &mut self.steps,
            |steps, acc, values| steps.adopt(values, acc),
            || convert(parts, place, &group),
        );
        self.fill(n + 2);
        turn
    }

    /// The turns of warpgroup 0.
    #[inline(always)]
    fn even<const K: usize>(
        &mut self,
        q: &Published<SharedTile<E, 4, K>>,
        mut exchange: OperandExchange<E, N>,
    ) {
        let mut n = 0;
        let mut turn = self.group.first_turn();
        loop {
            let (product, left, right) = (&mut Acc::unset(), self.left.keep(n), self.right.keep(n));
            let (parts, place) = ((&self.left, &self.right), [n + 1, self.steps.count()]);
            let (steps, acc, group) = (&mut self.steps, &mut self.acc, self.group.refillers());
            let product = AbtOfTwo(product, q, &left, &right);
            let beside = || convert(parts, place, &group);
            let operand = self.group.pass(turn, &mut exchange, product, beside, |product| {
                let (grew, rescale) = steps.observe(product, n);
                if grew {
                    acc.scale_rows(&rescale);
                }
                (steps.operand(product), steps.values())
            });
            self.multiply(&operand, n);
            n += 2;
            if n > self.steps.count() {
                break;
            }
            turn = self.receive(&exchange, n - 1);
            if n == self.steps.count() {
                break;
            }
        }
    }

    /// The turns of warpgroup 1.
    #[inline(always)]
    fn odd<const K: usize>(
        &mut self,
        q: &Published<SharedTile<E, 4, K>>,
        mut exchange: OperandExchange<E, N>,
    ) {
        let mut n = 1;
        while n < self.steps.count() {
            convert((&self.left, &self.right), [n, n + 1], &self.group.refillers());
            let (product, left, right) = (&mut Acc::unset(), self.left.keep(n), self.right.keep(n));
            let own = self.own(n - 1);
            let operand = self.group.overlapped_turn(
                &mut exchange,
                AbtOfTwo(product, q, &left, &right),
                AbPassed(&mut self.acc, &own),
                &mut self.steps,
                S::Left::CONVERTS,
                |steps, acc, values| steps.adopt(values, acc),
                |steps, product| {
                    let (grew, rescale) = steps.observe(product, n);
                    (grew, (steps.operand(product), rescale))
                },
                |steps, _, acc, (operand, rescale), grew| {
                    if grew {
                        acc.scale_rows(&rescale);
                    }
                    (operand, steps.values())
                },
            );
            self.fill(n + 1);
            self.multiply(&operand, n);
            n += 2;
        }
        if n == self.steps.count() {
            self.receive(&exchange, n - 1);
        }
    }
}
