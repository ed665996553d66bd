//! Entries: every line of the table becomes one, and [`entry!`](crate::entry) makes those of the caller.
#[cfg(feature = "entries")]
use cuda_std::{kernel, parameter_address};
use spec::{
    AttnKernel, Forward, Kernel, ManyQueries, MaskMarker, Paged, Sm80, Split, VariantParams, Varlen, With,
};
use tile::{Block, Smem};

/// A configuration that has a kernel.
pub trait Run: Kernel + Sized {
    /// Runs one thread block.
    fn run(params: Self::Params, block: Block<Self>, smem: Smem<Self>);
}

/// Makes a kernel of instructions `I` into kernel `To`: on varlen tensors, on a KV cache, with splits, or
/// with parameters of its mask and scores.
pub trait RunAs<To: Kernel, I>: AttnKernel {
    /// Runs one thread block.
    fn run_as(params: To::Params, block: Block<To>, smem: Smem<To>);
}

macro_rules! run_as {
    ($($to:ident),*) => {
        $(impl<K: Forward + RunAs<$to<K>, <K as AttnKernel>::Isa>> Run for $to<K> {
            #[inline(always)]
            fn run(params: Self::Params, block: Block<Self>, smem: Smem<Self>) {
                K::run_as(params, block, smem)
            }
        })*
    };
}
run_as!(Split, Varlen, Paged, ManyQueries);

impl<K: AttnKernel + RunAs<With<K>, <K as AttnKernel>::Isa>> Run for With<K> {
    #[inline(always)]
    fn run(params: Self::Params, block: Block<Self>, smem: Smem<Self>) {
        K::run_as(params, block, smem)
    }
}

/// A portable kernel: its body runs under any contract of its threads and shared memory.
pub trait Portable: AttnKernel<Isa = Sm80> {
    /// Runs one thread block.
    fn body<C: Kernel>(p: &Self::Params, variant: &VariantParams<Self>, block: Block<C>, smem: Smem<C>);
}

impl<K: Portable> RunAs<With<K>, Sm80> for K {
    #[inline(always)]
    fn run_as(p: <With<K> as Kernel>::Params, block: Block<With<K>>, smem: Smem<With<K>>) {
        const { assert!(K::Mask::STAGED_BYTES == 0, "only Hopper's kernels take `TmaBias`") }
        K::body(&p.kernel, &p.variant, block, smem)
    }
}

/// Makes a kernel of the caller's crate an entry of its PTX: `entry!(t5_d64: With<Fwd<..>>);`. The module
/// `t5_d64` then has the type `Kernel`, and its `CONTRACT` for `CudaBuilder::entry`.
#[macro_export]
macro_rules! entry {
    ($symbol:ident: $config:ty) => {
        #[doc = concat!("The kernel `", stringify!($symbol), "`.")]
        pub mod $symbol {
            use super::*;
            /// The kernel, as a type.
            pub type Kernel = $config;
            /// Its launch contract, for the build script.
            pub const CONTRACT: $crate::spec::Contract =
                $crate::spec::Contract::of::<Kernel>(stringify!($symbol));
        }

        #[doc = concat!("Entry `", stringify!($symbol), "`.")]
        ///
        /// # Safety
        /// - Launched as its `Kernel` says, with parameters that describe memory of the device.
        #[$crate::cuda_std::kernel]
        pub unsafe fn $symbol(params: <$symbol::Kernel as $crate::spec::Kernel>::Params) {
            // SAFETY: the launch contract, which `Kernel` states and the host keeps.
            let (block, smem) =
                unsafe { $crate::tile::Block::enter($crate::cuda_std::parameter_address!($symbol)) };
            <$symbol::Kernel as $crate::entries::Run>::run(params, block, smem)
        }
    };
}

#[cfg(feature = "entries")]
macro_rules! emit {
    ($(#[$doc:meta])* $list:ident: $info:ident,
        $($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        $(
            #[allow(dead_code, reason = "the device compiler may be asked for other kernels")]
            mod $symbol {
                use spec::*;
                $(type $name = $type;)*
                pub type Config = $config;
            }

            #[doc = concat!("Entry `", stringify!($symbol), "`.")]
            ///
            /// # Safety
            /// - The launch follows [`Kernel`], and the parameters describe memory of the device.
            #[kernel]
            pub unsafe fn $symbol(params: <$symbol::Config as Kernel>::Params) {
                // SAFETY: the launch contract, which `Kernel` states and the host keeps.
                let (block, smem) = unsafe { Block::enter(parameter_address!($symbol)) };
                <$symbol::Config as Run>::run(params, block, smem)
            }
        )*
    };
}
#[cfg(feature = "entries")]
spec::for_each_kernel!(emit);
#[cfg(feature = "entries")]
spec::for_each_lineage!(emit);
