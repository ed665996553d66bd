//! Values of a stage that the last product has released: the producer refills the stage.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, Acc};
use tile::wgmma::{JointA, KeptRows, Late, ValuedStage};

fn step(
    group: &mut Group,
    k: &KeptRows<'_, F16, 8, 2>,
    joint: &mut JointA<F16, 4, 8>,
    q: ValuedStage<'_, F16, 4, 8>,
) {
    let (mut dk, ds) = (Acc::<1, 8>::zero(), AFrag::<F16, 1, 4>::zero());
    let late = Late { dk: &mut dk, ds: &ds, q };
    group.two_products(late, k, |_: &mut Acc<1, 4>, _| (), joint, |_| ());
    let _ = q.columns(group.warp());
}

fn main() {}
