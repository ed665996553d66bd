//! Programmatic dependent launch: kernels that begin before the kernel before them has ended.
use crate::{Kernel, Start, Target};
use core::marker::PhantomData;

/// Kernel `K`, which waits for the kernel before it by itself. The host launches it with programmatic stream
/// serialization, so that its blocks may begin while the kernel before still runs.
///
/// Before the wait, such a kernel reads only memory that the kernel before it does not write, and it writes
/// nothing. Every thread waits before it ends. The next launch of the stream, which waits for this kernel
/// alone, therefore begins after both kernels.
pub struct Dependent<K>(PhantomData<K>);

impl<K: Kernel> Kernel for Dependent<K> {
    type Params = K::Params;
    const START: Start<Self> = Start::EARLY;
    const TARGET: Target = {
        assert!(matches!(K::TARGET, Target::From(..=90)), "dependent kernels are PTX for sm_90");
        Target::From(90)
    };
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const PARAM_ALIGN: u32 = K::PARAM_ALIGN;
    const BOXES: &'static [[u32; 2]] = K::BOXES;
    const BLOCKS_PER_SM: u32 = K::BLOCKS_PER_SM;
    fn grid(params: &K::Params) -> [u32; 3] {
        K::grid(params)
    }
}
