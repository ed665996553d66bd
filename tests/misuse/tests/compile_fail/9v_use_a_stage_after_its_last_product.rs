//! Values of a stage that the last product has released: the producer refills the stage.
use contract::F16;
use misuse::Group;
use tile::mma::Acc;
use tile::wgmma::{Ds, KeptRows, Late, ValuedStage};

fn step(group: &mut Group, k: &KeptRows<'_, F16, 8, 2>, ds: Ds<F16, 4, 8>, q: ValuedStage<'_, F16, 4, 8>) {
    let mut dk = Acc::<1, 8>::zero();
    let late = Late { dk: &mut dk, ds, q };
    group.two_products(late, k, |_: &mut Acc<1, 4>, _| (), |_| ());
    let _ = q.columns(group.warp());
}

fn main() {}
