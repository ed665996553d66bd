//! Hopper's kernels over a cache in pages.
use crate::*;
use core::marker::PhantomData;

/// Hopper's kernel `K` over a [`Cache`].
pub struct HopperPaged<K>(PhantomData<K>);

/// What a [`HopperPaged`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperPagedParams {
    /// The forward, of one batch whose queries are those of all sequences. `sequences` deals out the query
    /// blocks of its heads; no sequence has more keys than `k_len`. A sequence's last query is at its last
    /// key, and `window.shift` further on, as in [`PagedParams::forward`]; of batches that lie one behind the
    /// other, the log-sum-exp's next is as far as it would be beyond the rows of the one before.
    pub forward: HopperParams<RaggedMap, PagedMap>,
    /// What pages are whose, and how large they are.
    pub cache: Cache,
    /// As [`PackedParams::cu_seqlens_q`]; none where each sequence has `queries`.
    pub cu_seqlens_q: Integers,
    /// Keys of each sequence.
    pub lengths: Integers,
    /// Which query block is whose.
    pub sequences: Sequences,
    /// Queries of each sequence, where these are not told.
    pub queries: FastDiv,
    /// Of K and V.
    pub boxes: PageBoxes,
}

impl AsRef<HopperParams<RaggedMap, PagedMap>> for HopperPagedParams {
    #[inline(always)]
    fn as_ref(&self) -> &HopperParams<RaggedMap, PagedMap> {
        &self.forward
    }
}

impl<K: Forward> Kernel for HopperPaged<K> {
    type Params = HopperPagedParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const PARAM_ALIGN: u32 = K::PARAM_ALIGN;
    const BOXES: &'static [[u32; 2]] = K::BOXES;
    fn grid(params: &HopperPagedParams) -> [u32; 3] {
        [params.forward.rounds.blocks(), 1, 1]
    }
}

impl<K: Forward> HopperPaged<K> {
    /// The kernel compiled as `symbol`.
    const fn info(symbol: &'static str) -> PagedInfo {
        PagedInfo::of::<K>(Contract::of::<Self>(symbol))
    }
}

/// Expands `$emit!` with every [`HopperPaged`] kernel, for both element types and each of its masks. As few
/// as serve: causal ones do without a bound, too, and head dims between run on the next larger one. (Those of
/// head dim 256 spill where tiles end.) Symbols are `hopper_paged_{dtype}_d{head dim}_{mask}_{queries of a
/// block}x{keys of a stage}`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_hopper_paged { ($emit:ident) => { $crate::hopper_paged_lines! { $emit:
    d64 [Causal, Local] 128x128: HopperPaged<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
    d128 [Causal] 128x128: HopperPaged<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    d128 [Local] 128x96: HopperPaged<FwdHopper<E, Mask, 2, 6, 8, 2, true>>;
} } }

/// Expands lines of Hopper's paged kernels for both element types and each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! hopper_paged_lines {
    ($emit:ident: $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<hopper_paged_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<hopper_paged_bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

macro_rules! hopper_paged_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled [`HopperPaged`] kernel. They know no ALiBi slopes, and causal ones no softcap.
        pub const HOPPERS_PAGED: &[PagedInfo] = &[$({
            $(type $name = $type;)*
            <$config>::info(stringify!($symbol))
        }),*];
    };
}
for_each_hopper_paged!(hopper_paged_entries);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn symbols_say_what_they_are_and_blocks_fit_a_hopper() {
        for e in HOPPERS_PAGED {
            let name =
                format!("{}_d{}_{}_{}x{}", e.dtype.name(), e.head_dim, e.mask.name(), e.tile_m, e.tile_n);
            assert_eq!(e.contract.symbol, format!("hopper_paged_{name}"));
            assert_eq!(e.contract.target, Target::Exactly(90));
            assert!(e.contract.smem_bytes <= 227 << 10 && e.contract.param_align == TensorMap::ALIGN);
        }
    }

    #[test]
    fn parameters_have_no_padding() {
        let rest = size_of::<Cache>() + 2 * size_of::<Integers>() + size_of::<Sequences>();
        let rest = rest + size_of::<FastDiv>() + 2 * 4;
        assert_eq!(size_of::<HopperPagedParams>(), size_of::<HopperParams>() + rest);
        assert_eq!(size_of::<HopperParams<RaggedMap, PagedMap>>(), size_of::<HopperParams>());
    }
}
