//! Sparse MLA (DeepSeek Sparse Attention): each query has a list of keys of a latent cache.
use crate::variant::no_variant;
use crate::{AttnInfo, AttnKernel, Contract, DecodeParams, Integers, Kernel, Keys, Line, Target};
use core::marker::PhantomData;

/// MLA decode kernel `K`, whose sequences are queries: query `i` sees the keys of its list, and no other key.
/// The list is the mask, so that `K`'s mask is [`crate::Full`].
pub struct Sparse<K>(PhantomData<K>);

/// Parameters of a [`Sparse`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseParams {
    /// The decode parameters. Each query is a sequence of one query and of [`crate::DecodeOrder::max_keys`]
    /// keys, which is the length of a list.
    pub decode: DecodeParams,
    /// The lists, `[query][key head][entry]`: slots, as [`crate::Slots`] numbers them. A kernel skips a slot
    /// that is negative or beyond all pages.
    pub slots: Integers,
}
contract::no_padding! {
    SparseParams { decode, slots }
}
no_variant!(SparseParams);

impl<K: AttnKernel> Kernel for Sparse<K> {
    type Params = SparseParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const BLOCKS_PER_SM: u32 = K::BLOCKS_PER_SM;
    fn grid(params: &SparseParams) -> [u32; 3] {
        [params.decode.order.blocks, 1, 1]
    }
}

impl<K: AttnKernel> Line for Sparse<K> {
    type Info = AttnInfo;
    const INFO: AttnInfo = {
        assert!(matches!(K::INFO.keys, Keys::Latent), "lists are lists of latents");
        AttnInfo { contract: Contract::of::<Self>(""), keys: Keys::Listed, ..K::INFO }
    };
}

impl<K: AttnKernel> AttnKernel for Sparse<K> {
    type Isa = K::Isa;
    type Mask = K::Mask;
}
