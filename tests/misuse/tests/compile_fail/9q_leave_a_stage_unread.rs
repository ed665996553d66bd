//! A stage left by a warpgroup without a product that reads it: the producer refills it while others read.
use misuse::{Engine, KeptQ};
use tile::{Abt, Acc, Product};

fn leave(q: &KeptQ<'_>, k: &mut Engine) {
    Abt(&mut Acc::<1, 8>::unset(), q, k).leave();
}

fn leave_through_a_bound(mut product: impl Product<2>) {
    product.leave();
}

fn main() {}
