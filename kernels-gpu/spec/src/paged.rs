//! Forward kernels over a cache in pages: many queries a sequence, packed or as many for each.
use crate::hopper::panel;
use crate::*;
use core::marker::PhantomData;

/// Kernel `K` over a [`Cache`]: chunks of prompts, whole ones, and batches of both.
pub struct Paged<K>(PhantomData<K>);

/// What a [`Paged`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedParams {
    /// The forward. Its `k` and `v` say nothing; a sequence's last query is at its last key, and
    /// `window.shift` further on: so far that it sees all, where the mask has no bound.
    pub forward: FwdParams,
    /// Keys and values.
    pub cache: Cache,
    /// As [`PackedParams::cu_seqlens_q`], with one batch in `forward`; none where each batch is a sequence.
    pub cu_seqlens_q: Integers,
    /// Keys of each sequence.
    pub lengths: Integers,
    /// Which query block is whose, where sequences are packed.
    pub sequences: Sequences,
    /// No sequence has more keys.
    pub max_keys: u32,
}

impl<K: Forward> Kernel for Paged<K> {
    type Params = PagedParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    fn grid(params: &PagedParams) -> [u32; 3] {
        [params.forward.order.tiles, 1, 1]
    }
}

/// A compiled [`Paged`] or [`HopperPaged`] kernel as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of Q, K, V and O.
    pub dtype: DType,
    /// Largest head dim, in elements.
    pub head_dim: u32,
    /// Which keys a query sees. [`MaskKind::Causal`] entries do without a bound, too.
    pub mask: MaskKind,
    /// Queries of a block.
    pub tile_m: u32,
    /// Keys of a stage.
    pub tile_n: u32,
}

impl PagedInfo {
    /// Whether it is told tensor maps: one of Hopper's.
    pub const fn has_maps(&self) -> bool {
        self.contract.param_align == TensorMap::ALIGN
    }

    /// As [`EntryInfo::panel`].
    pub const fn panel(&self) -> u32 {
        panel(self.head_dim)
    }

    /// Kernel `K` over a cache, compiled so.
    pub(crate) const fn of<K: Forward>(contract: Contract) -> Self {
        PagedInfo {
            contract,
            dtype: K::DTYPE,
            head_dim: K::HEAD_DIM,
            mask: K::MASK,
            tile_m: K::TILE_M,
            tile_n: K::TILE_N,
        }
    }
}

impl<K: Forward> Paged<K> {
    /// The kernel compiled as `symbol`.
    const fn info(symbol: &'static str) -> PagedInfo {
        PagedInfo::of::<K>(Contract::of::<Self>(symbol))
    }
}

/// Expands `$emit!` with every [`Paged`] kernel, for both element types and each of its masks: `symbol [E =
/// F16, Mask = Causal]: Configuration;`. One tiling for each mask and head dim,
/// and head dims between run on the next larger one: kernels are bytes in every program. Symbols are
/// `paged_{dtype}_d{head dim}_{mask}_{queries of a block}x{keys of a stage}`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_paged { ($emit:ident) => { $crate::paged_lines! { $emit:
    d64 [Causal, Local] 128x64: Paged<Fwd<E, Mask, 8, 2, 1, 4, 4, 4, 2>>;
    d128 [Causal] 128x48: Paged<Fwd<E, Mask, 8, 2, 1, 3, 8, 0, 2>>;
    d128 [Local] 128x32: Paged<Fwd<E, Mask, 8, 2, 1, 2, 8, 0, 2>>;
    d256 [Causal, Local] 64x32: Paged<Fwd<E, Mask, 4, 1, 1, 2, 16, 4, 2>>;
    d512 [Causal] 64x32: Paged<FwdWide<E, Mask, 4, 1, 2, 32, 16, 12>>;
    d512 [Local] 32x32: Paged<FwdWide<E, Mask, 2, 1, 2, 32, 16, 4>>;
} } }

/// Expands lines of paged kernels for both element types and each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! paged_lines {
    ($emit:ident: $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<paged_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<paged_bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

macro_rules! paged_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled [`Paged`] kernel, in the order in which the planner looks for one.
        pub const PAGED: &[PagedInfo] = &[$({
            $(type $name = $type;)*
            <$config>::info(stringify!($symbol))
        }),*];
    };
}
for_each_paged!(paged_entries);
