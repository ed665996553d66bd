//! Hopper's kernels for packed sequences.
use crate::forward::forward_as;
use crate::*;
use core::marker::PhantomData;

/// Hopper's kernel `K` for packed sequences.
pub struct HopperPacked<K>(PhantomData<K>);

/// What a [`HopperPacked`] kernel is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperPackedParams {
    /// The forward, of one batch whose rows are those of all sequences. `sequences` deals out the query
    /// blocks of its heads; `window.shift` says nothing.
    pub forward: HopperParams<RaggedMap>,
    /// As [`PackedParams::cu_seqlens_q`].
    pub cu_seqlens_q: Integers,
    /// The same of K and V.
    pub cu_seqlens_k: Integers,
    /// As [`PackedParams::seqused_k`].
    pub seqused_k: Integers,
    /// Which query block is whose.
    pub sequences: Sequences,
    /// As [`PackedParams::bottom_right`].
    pub bottom_right: u32,
}

impl AsRef<HopperParams<RaggedMap>> for HopperPackedParams {
    #[inline(always)]
    fn as_ref(&self) -> &HopperParams<RaggedMap> {
        &self.forward
    }
}

impl<K: Forward> Kernel for HopperPacked<K> {
    type Params = HopperPackedParams;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = K::THREADS;
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const PARAM_ALIGN: u32 = K::PARAM_ALIGN;
    const BOXES: &'static [[u32; 2]] = K::BOXES;
    fn grid(params: &HopperPackedParams) -> [u32; 3] {
        [params.forward.rounds.blocks(), 1, 1]
    }
}

forward_as! { HopperPacked: PackedRounds; }

/// Expands `$emit!` with every [`HopperPacked`] kernel, for both element types and each of its masks: one
/// tiling for each head dim and mask, with as many keys as leave registers for what a sequence is. (Causal
/// and local ones of head dim 96 spill whatever they have, where tiles end.) Symbols are
/// `hopper_packed_{dtype}_d{head dim}_{mask}_{queries of a block}x{keys of a stage}`.
#[macro_export]
#[rustfmt::skip]
macro_rules! for_each_hopper_packed { ($emit:ident) => { $crate::hopper_packed_lines! { $emit:
    d64 [Full, Causal, Local] 128x128: HopperPacked<FwdHopper<E, Mask, 2, 8, 4, 3, true>>;
    d96 [Full] 128x128: HopperPacked<FwdHopper<E, Mask, 2, 8, 6, 2, true>>;
    d128 [Full] 128x128: HopperPacked<FwdHopper<E, Mask, 2, 8, 8, 2, true>>;
    d128 [Causal] 128x128: HopperPacked<FwdHopper<E, Mask, 2, 8, 8, 2, false>>;
    d128 [Local] 128x96: HopperPacked<FwdHopper<E, Mask, 2, 6, 8, 2, true>>;
    d192 [Full, Causal, Local] 128x96: HopperPacked<FwdHopperWide<E, Mask, 2, 6, 12, 2, true>>;
    d256 [Full, Causal, Local] 128x64: HopperPacked<FwdHopperWide<E, Mask, 2, 4, 16, 2, true>>;
} } }

/// Expands lines of Hopper's packed kernels for both element types and each of their masks.
#[doc(hidden)]
#[macro_export]
macro_rules! hopper_packed_lines {
    ($emit:ident: $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)*) => {
        $crate::pastey::paste! { $emit! { $($(
            [<hopper_packed_f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<hopper_packed_bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)* } }
    };
}

macro_rules! hopper_packed_entries {
    ($($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        /// Every compiled [`HopperPacked`] kernel. [`MaskKind::Local`] ones know softcap, no ALiBi slopes.
        pub const HOPPERS_PACKED: &[EntryInfo] = &[$({
            $(type $name = $type;)*
            EntryInfo::of::<$config>(Contract::of::<$config>(stringify!($symbol)))
        }),*];
    };
}
for_each_hopper_packed!(hopper_packed_entries);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn symbols_say_what_they_are_and_blocks_fit_a_hopper() {
        for e in HOPPERS_PACKED {
            let name =
                format!("{}_d{}_{}_{}x{}", e.dtype.name(), e.head_dim, e.mask.name(), e.tile_m, e.tile_n);
            assert_eq!(e.contract.symbol, format!("hopper_packed_{name}"));
            assert_eq!((e.grid, e.contract.target), (Grid::PackedRounds, Target::Exactly(90)));
            assert!(e.contract.smem_bytes <= 227 << 10 && e.contract.param_align == TensorMap::ALIGN);
        }
    }

    #[test]
    fn parameters_have_no_padding() {
        let rest = 3 * size_of::<Integers>() + size_of::<Sequences>() + 4;
        assert_eq!(size_of::<HopperPackedParams>(), size_of::<HopperParams>() + rest);
        assert_eq!(size_of::<HopperParams<RaggedMap>>(), size_of::<HopperParams>());
    }
}
