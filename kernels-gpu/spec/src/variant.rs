//! Kernels whose mask and scores have parameters: attention variants.
use crate::*;
use core::marker::PhantomData;

/// An attention kernel: either for dense tensors, or made from such a kernel by a wrapper.
pub trait AttnKernel: Line<Info = AttnInfo> {
    /// The kernel's instructions.
    type Isa: IsaMarker;
    /// The kernel's mask, with its score modifications.
    type Mask: MaskMarker;
}

/// Parameters of kernel `K`'s mask and scores.
pub type VariantParams<K> = <<K as AttnKernel>::Mask as MaskMarker>::Params;

/// Whether kernel `K`'s mask or scores have parameters.
pub const fn has_params<K: AttnKernel>() -> bool {
    size_of::<VariantParams<K>>() > 0
}

/// Kernel `K` with the parameters of its mask and scores.
pub struct With<K>(PhantomData<K>);

/// Parameters of a [`With`] kernel. The parameters of the kernel come first, then the parameters of the mask,
/// and then the parameters of the scores from left to right. There is no padding between them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithParams<P, X> {
    /// The parameters of the kernel.
    pub kernel: P,
    /// The parameters of the kernel's mask and scores.
    pub variant: X,
}

impl<P, X> WithParams<P, X> {
    /// A compile error for types with padding between or behind them, because a launch copies the bytes.
    pub(crate) const NO_PADDING: () = assert!(
        size_of::<Self>() == size_of::<P>() + size_of::<X>(),
        "parameters of masks and scores must be a multiple of 8 bytes, with at most that alignment: add a \
         `reserved` field"
    );

    /// Makes the parameters `kernel`, followed by `variant`.
    pub const fn new(kernel: P, variant: X) -> Self {
        const { Self::NO_PADDING }
        WithParams { kernel, variant }
    }
}

impl<F, P: AsRef<F>, X> AsRef<F> for WithParams<P, X> {
    #[inline(always)]
    fn as_ref(&self) -> &F {
        self.kernel.as_ref()
    }
}

/// Parameters with those of a mask and scores behind them; `()` if these have none.
pub trait HasVariant<X> {
    /// The parameters of mask and scores.
    fn variant(&self) -> &X;
}

impl<P, X> HasVariant<X> for WithParams<P, X> {
    #[inline(always)]
    fn variant(&self) -> &X {
        &self.variant
    }
}

/// Implements [`HasVariant`] for parameters of kernels whose mask and scores have none.
macro_rules! no_variant {
    ($params:ty $(, $generic:ident)*) => {
        impl<$($generic),*> $crate::HasVariant<()> for $params {
            #[inline(always)]
            fn variant(&self) -> &() {
                &()
            }
        }
    };
}
pub(crate) use no_variant;

impl<K: AttnKernel> Kernel for With<K> {
    type Params = WithParams<K::Params, VariantParams<K>>;
    const TARGET: Target = K::TARGET;
    const THREADS: u32 = {
        let () = Self::Params::NO_PADDING;
        K::THREADS
    };
    const SMEM_BYTES: usize = K::SMEM_BYTES;
    const PARAM_ALIGN: u32 = K::PARAM_ALIGN;
    const BOXES: &'static [[u32; 2]] = K::BOXES;
    const BLOCKS_PER_SM: u32 = K::BLOCKS_PER_SM;
    fn grid(params: &Self::Params) -> [u32; 3] {
        K::grid(&params.kernel)
    }
}

impl<K: AttnKernel> Line for With<K> {
    type Info = AttnInfo;
    const INFO: AttnInfo = AttnInfo { contract: Contract::of::<Self>(""), ..K::INFO };
}

impl<K: AttnKernel> AttnKernel for With<K> {
    type Isa = K::Isa;
    type Mask = K::Mask;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_whole_words_without_padding() {
        assert_eq!(size_of::<And<(), SinkParams>>(), size_of::<SinkParams>());
        macro_rules! sum {
            ($($kernel:ty),*) => {$(
                type Params = <$kernel as Kernel>::Params;
                let parts = size_of::<Params>().is_multiple_of(8);
                assert!(parts, "{}", size_of::<Params>());
            )*};
        }
        {
            sum!(With<Fwd<F16, Scored<Prefix, (Bias<F32>, Sink)>, 8, 2, 1, 4, 4, 4, 2>>);
            let scores = size_of::<BiasParams>() + size_of::<SinkParams>();
            assert_eq!(size_of::<Params>(), size_of::<FwdParams>() + size_of::<PrefixParams>() + scores);
        }
        {
            sum!(With<Varlen<Fwd<F16, Chunked, 8, 2, 1, 4, 4, 4, 2>>>);
            assert_eq!(size_of::<Params>(), size_of::<VarlenParams>() + size_of::<ChunkedParams>());
        }
        {
            sum!(With<Paged<Fwd<F16, Bits, 8, 2, 1, 4, 4, 4, 2>>>);
            assert_eq!(size_of::<Params>(), size_of::<PagedParams>() + size_of::<BitsParams>());
        }
    }

    #[test]
    fn a_variant_is_its_kernel_but_for_parameters() {
        type Dense = Fwd<F16, Scored<Causal, Sink>, 8, 2, 1, 4, 4, 4, 2>;
        assert_eq!(<With<Dense>>::INFO, Dense::INFO);
        assert_eq!((Dense::INFO.mask, Dense::INFO.scores), (MaskKind::Causal, ScoreKinds::SINK));
        const { assert!(<With<Split<Dense>>>::INFO.splits) };
    }
}
