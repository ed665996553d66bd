//! Kernels for mixed batches on a KV cache: queries are varlen, and some sequences have few queries while
//! others have many. Two kernels run on the same batch. Each kernel finds its sequences on the device: the
//! decode kernel takes the sequences of at most `most` queries, the prefill kernel takes the others.
use crate::forward::made_of;
use crate::variant::no_variant;
use crate::*;
use core::marker::PhantomData;

/// Decode kernel `K` on the sequences of few queries.
pub struct FewQueries<K>(PhantomData<K>);

/// The combine kernel of [`FewQueries`], for launches without counters.
pub struct FewCombine<E, const D: usize>(PhantomData<E>);

/// Portable prefill kernel `K` on a KV cache, on the sequences of many queries. Hopper's [`Paged`] kernels
/// take these sequences by [`HopperPagedParams::begins`].
pub struct ManyQueries<K>(PhantomData<K>);

/// Parameters of a [`FewQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FewParams {
    /// The decode parameters. `q`, `o` and `lse` have one batch with the rows of all sequences; blocks of
    /// rows, partial results and counters assume `most` queries per sequence.
    pub decode: DecodeParams,
    /// See [`VarlenParams::cu_seqlens_q`].
    pub cu_seqlens_q: Integers,
    /// The kernel takes the sequences of at most this number of queries, at least 1.
    pub most: u32,
    /// Padding: 0.
    pub reserved: u32,
}

/// Parameters of a [`ManyQueries`] kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyParams<P = PagedParams> {
    /// The prefill parameters, with varlen queries. With these `sequences`, a kernel always searches for a
    /// tile's sequence.
    pub paged: P,
    /// See [`NumberTilesParams::begins`].
    pub begins: Integers,
}

contract::no_padding! {
    FewParams { decode, cu_seqlens_q, most, reserved }
    ManyParams { paged, begins }
    ManyParams<PagedParams<[PerHead; 2]>> { paged, begins }
}

no_variant!(FewParams);

impl<P: Scheduled> Scheduled for ManyParams<P> {
    fn order(&self) -> &TileOrder {
        self.paged.order()
    }
    fn blocks(&self) -> u32 {
        self.paged.blocks()
    }
}

made_of!(
    ManyQueries<K>: ManyParams<<K::Isa as IsaMarker>::Paged<K::Scales>>,
    |p: &ManyParams<<K::Isa as IsaMarker>::Paged<K::Scales>>| p.blocks(),
    { queries: Queries::Mixed, keys: Keys::Cache(PageKind::Rows) }
);

impl<E: Element, const D: usize> Kernel for FewCombine<E, D> {
    type Params = FewParams;
    const THREADS: u32 = <DecodeCombine<E, D>>::THREADS;
    const SMEM_BYTES: usize = <DecodeCombine<E, D>>::SMEM_BYTES;
    const BLOCKS_PER_SM: u32 = <DecodeCombine<E, D>>::BLOCKS_PER_SM;
    fn grid(params: &FewParams) -> [u32; 3] {
        [params.decode.order.blocks, 1, 1]
    }
}

impl<E: Element, const D: usize> Line for FewCombine<E, D> {
    type Info = CombineInfo;
    const INFO: CombineInfo = CombineInfo {
        contract: Contract::of::<Self>(""),
        of: SplitKernels::Mixed,
        ..<DecodeCombine<E, D>>::INFO
    };
}

impl<K: Kernel<Params = DecodeParams>> Kernel for FewQueries<K> {
    type Params = FewParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const BLOCKS_PER_SM: u32 = K::BLOCKS_PER_SM;
    fn grid(params: &FewParams) -> [u32; 3] {
        K::grid(&params.decode)
    }
}

impl<K: AttnKernel + Kernel<Params = DecodeParams>> Line for FewQueries<K> {
    type Info = AttnInfo;
    const INFO: AttnInfo =
        AttnInfo { contract: Contract::of::<Self>(""), queries: Queries::Mixed, ..K::INFO };
}

impl<K: AttnKernel + Kernel<Params = DecodeParams>> AttnKernel for FewQueries<K> {
    type Isa = K::Isa;
    type Mask = K::Mask;
}
