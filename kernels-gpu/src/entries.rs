//! Entries: every line of the table becomes a PTX entry, and [`entry!`](crate::entry) makes entries of a
//! caller's kernels.
#[cfg(feature = "entries")]
use cuda_std::{kernel, parameter_address};
use spec::{
    AttnKernel, Dependent, Forward, Kernel, ManyQueries, MaskMarker, Paged, Sm80, Split, VariantParams,
    Varlen, With,
};
use tile::{Block, Smem};

/// A configuration that has a kernel body.
pub trait Run: Kernel + Sized {
    /// Runs one thread block.
    fn run(params: Self::Params, block: Block<Self>, smem: Smem<Self>);
}

/// A kernel that can be [`Dependent`].
pub trait RunDependent: Kernel + Sized {
    /// Runs one thread block. The kernels before may still run, and their results can be read behind
    /// [`Block::ended`].
    fn run_dependent(params: Self::Params, block: &mut Block<Dependent<Self>>, smem: Smem<Dependent<Self>>);
}

/// Every thread waits for the kernels before this one, whatever it has done. The next launch waits for this
/// kernel alone.
impl<K: RunDependent> Run for Dependent<K> {
    #[inline(always)]
    fn run(params: Self::Params, mut block: Block<Self>, smem: Smem<Self>) {
        K::run_dependent(params, &mut block, smem);
        block.ended();
    }
}

/// Turns a kernel of instructions `I` into kernel `To`: on varlen tensors, on a KV cache, with splits, or
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

/// A portable kernel, whose body runs under any contract that has its threads and shared memory.
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

/// Makes a PTX entry of a kernel of the caller's crate: `entry!(t5_d64: With<Fwd<..>>);`. This makes a module
/// `t5_d64`, which contains the type `Kernel`, and `CONTRACT` for `CudaBuilder::entry`.
#[macro_export]
macro_rules! entry {
    ($symbol:ident: $config:ty) => {
        #[doc = concat!("The kernel `", stringify!($symbol), "`.")]
        pub mod $symbol {
            use super::*;
            /// The kernel, as a type.
            pub type Kernel = $config;
            /// The kernel's launch contract, for the caller's build script.
            pub const CONTRACT: $crate::spec::Contract =
                $crate::spec::Contract::of::<Kernel>(stringify!($symbol));
        }

        #[doc = concat!("Entry `", stringify!($symbol), "`.")]
        ///
        /// # Safety
        /// - The launch must follow the contract of `Kernel`, and the parameters must describe memory of the
        ///   device.
        #[$crate::cuda_std::kernel]
        pub unsafe fn $symbol(params: <$symbol::Kernel as $crate::spec::Kernel>::Params) {
            // SAFETY: the launch follows the contract of `Kernel`, as the caller of this entry promises.
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
            /// - The launch must follow the contract of [`Kernel`], and the parameters must describe memory
            ///   of the device.
            #[kernel]
            pub unsafe fn $symbol(params: <$symbol::Config as Kernel>::Params) {
                // SAFETY: the launch follows the contract of `Kernel`, as the caller of this entry promises.
                let (block, smem) = unsafe { Block::enter(parameter_address!($symbol)) };
                <$symbol::Config as Run>::run(params, block, smem)
            }
        )*
    };
}
#[cfg(feature = "entries")]
spec::for_each_kernel!(emit);
#[cfg(feature = "entries")]
spec::for_each_other!(emit);
#[cfg(feature = "entries")]
spec::for_each_lineage!(emit);
#[cfg(feature = "entries")]
spec::for_each_gradient!(emit);
