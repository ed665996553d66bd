//! An operand of all warpgroups, read before a step has written it.
use contract::F16;
use misuse::Group;
use tile::mma::{AFrag, Acc};
use tile::wgmma::{Ds, JointA, KeptRows, Late, ValuedStage};

fn read(
    group: &mut Group,
    k: &KeptRows<'_, F16, 8, 2>,
    joint: JointA<F16, 4, 8>,
    q: ValuedStage<'_, F16, 4, 8>,
) {
    let mut dk = Acc::<1, 8>::zero();
    let ds = Ds { fragment: AFrag::zero(), joint };
    group.two_products(Late { dk: &mut dk, ds, q }, k, |_: &mut Acc<1, 4>, _| (), |_| ());
}

fn main() {}
