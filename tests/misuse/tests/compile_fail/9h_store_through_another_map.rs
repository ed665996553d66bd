//! O stored through the tensor map of K.
use contract::F16;
use misuse::Group;
use tile::epilogue::StoreBuffer;
use tile::mma::Acc;
use tile::tma::TmaTensor;

fn send(out: &mut StoreBuffer<F16, 8, 2>, o: &Acc<1, 8>, keys: &TmaTensor<F16, 8, 8>, group: &mut Group) {
    out.store(o, keys, [0; 3], group);
}

fn main() {}
