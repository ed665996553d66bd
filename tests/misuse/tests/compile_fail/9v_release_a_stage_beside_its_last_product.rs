//! A stage that is released beside the last product that reads it: the producer refills the stage.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, Acc};
use tile::wgmma::{JointA, KeptRows, Never, Step, StepOrder, ValuedStage};

fn step(
    group: &mut Group,
    joint: &mut JointA<F16, 4, 8>,
    k: &KeptRows<'_, F16, 8, 2>,
    v: &KeptRows<'_, F16, 8, 2>,
    [q, d_o]: [ValuedStage<'_, F16, 4, 8>; 2],
) {
    let (mut dk, mut dv) = (Acc::<1, 8>::zero(), Acc::<1, 8>::zero());
    let (order, never) = (StepOrder::Together, Never::of_grid());
    let (dv, dk, depths, rows) = (&mut dv, &mut dk, [8; 2], 128);
    let step = Step { k, v, q: &q, d_o: &d_o, dv, dk, depths, rows, order, never };
    let add = |_: &mut Acc<1, 8>, _: &mut Group| drop(q);
    group.five_products(joint, step, |_| AFrag::zero(), |_, _, _| AFrag::zero(), add);
}

fn main() {}
