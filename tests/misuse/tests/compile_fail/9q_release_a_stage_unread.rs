//! A warpgroup releases a stage before a product has read it: the producer refills the stage while others
//! read it.
use misuse::{TmaStages, GuardedQ};
use tile::mma::Acc;
use tile::wgmma::{Abt, Product};

fn release(q: &GuardedQ<'_>, k: &mut TmaStages) {
    Abt(&mut Acc::<1, 8>::unset(), q, k).release();
}

fn release_through_a_bound(mut product: impl Product<2>) {
    product.release();
}

fn main() {}
