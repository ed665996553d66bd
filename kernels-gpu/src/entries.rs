//! Every line of the table becomes an entry.
use cuda_std::kernel;
use spec::*;
use tile::{Block, Smem};

/// A configuration with its kernel.
pub trait Run: Kernel + Sized {
    /// What one thread block does.
    fn run(params: Self::Params, block: Block<Self>, smem: Smem<Self>);
}

macro_rules! emit {
    ($($symbol:ident: $kernel:ty $(, spills $stores:literal $loads:literal $reason:literal)?;)*) => {
        $(
            #[doc = concat!("Entry `", stringify!($symbol), "`.")]
            ///
            /// # Safety
            /// - Launched as its [`Kernel`] says, with parameters that describe memory of the device.
            #[kernel]
            pub unsafe fn $symbol(params: <$kernel as Kernel>::Params) {
                // SAFETY: the launch contract, which `Kernel` states and the host keeps.
                let (block, smem) = unsafe { Block::enter() };
                <$kernel as Run>::run(params, block, smem)
            }
        )*
    };
}
spec::for_each_entry!(emit);
spec::for_each_combine!(emit);
