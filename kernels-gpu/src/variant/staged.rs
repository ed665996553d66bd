//! Numbers that scores read beside keys: the producer copies them block by block, as it copies keys.
use crate::rows::Sequence;
use crate::sealed::Sealed;
use core::marker::PhantomData;
use cuda_std::math::fma;
use spec::{And, HasVariant, Kernel, Plain, TmaBias, TmaBiasParams};
use tile::Block;
use tile::mma::{Acc, Unpack};
use tile::pipeline::{MbarrierPipeline, Specialized};
use tile::shared::SharedTiles;
use tile::tma::{MatrixMap, Tma, TmaTensor};

/// The numbers of a mask with parameters `X`, in stages for `W` warpgroups' rows and `N` base tiles of keys.
/// `()` stands for no numbers.
pub trait Staged<X>: Sealed {
    /// Their pipeline in shared memory.
    type Pipeline<const W: usize, const N: usize>: Specialized;
    /// Their tensor.
    type Tensor<const N: usize>;

    /// The tensor behind the launch's tensor map.
    fn tensor<C: Kernel<Params: HasVariant<X>>, const N: usize>(block: &Block<C>) -> Self::Tensor<N>;

    /// The producer: starts the copy of the numbers of a work tile's rows and of the key block at key `key`.
    fn copy<const W: usize, const N: usize>(
        to: &mut <Self::Pipeline<W, N> as Specialized>::Producer,
        from: &Self::Tensor<N>,
        params: &X,
        of: &Sequence,
        key: u32,
    );

    /// A consumer warp: adds the next block's numbers to its scores.
    fn add<const W: usize, const N: usize>(
        from: &mut <Self::Pipeline<W, N> as Specialized>::Consumer,
        acc_s: &mut Acc<1, N>,
        of: &Sequence,
    );
}

impl<X> Staged<X> for () {
    type Pipeline<const W: usize, const N: usize> = ();
    type Tensor<const N: usize> = ();
    #[inline(always)]
    fn tensor<C: Kernel<Params: HasVariant<X>>, const N: usize>(_: &Block<C>) {}
    #[inline(always)]
    fn copy<const W: usize, const N: usize>(_: &mut (), _: &(), _: &X, _: &Sequence, _: u32) {}
    #[inline(always)]
    fn add<const W: usize, const N: usize>(_: &mut (), _: &mut Acc<1, N>, _: &Sequence) {}
}

/// The stages of [`TmaBias`].
pub struct BiasStages<T>(PhantomData<T>);

impl<T> Sealed for BiasStages<T> {}
impl<X: Plain, T: Unpack> Staged<And<TmaBiasParams, X>> for BiasStages<T> {
    type Pipeline<const W: usize, const N: usize> =
        MbarrierPipeline<SharedTiles<T, 4, N, W>, { TmaBias::<(), ()>::STAGES }, Tma<MatrixMap>>;
    type Tensor<const N: usize> = TmaTensor<T, 4, N, MatrixMap>;

    #[inline(always)]
    fn tensor<C: Kernel<Params: HasVariant<And<TmaBiasParams, X>>>, const N: usize>(
        block: &Block<C>,
    ) -> Self::Tensor<N> {
        block.tensor(|params| &params.variant().a.map)
    }

    #[inline(always)]
    fn copy<const W: usize, const N: usize>(
        to: &mut <Self::Pipeline<W, N> as Specialized>::Producer,
        from: &Self::Tensor<N>,
        And { a: bias, .. }: &And<TmaBiasParams, X>,
        of: &Sequence,
        key: u32,
    ) {
        to.load(from, [key, of.tile[0] as u32, of.head * bias.of_heads, of.index * bias.of_batches])
    }

    #[inline(always)]
    fn add<const W: usize, const N: usize>(
        from: &mut <Self::Pipeline<W, N> as Specialized>::Consumer,
        acc_s: &mut Acc<1, N>,
        of: &Sequence,
    ) {
        let factor = of.unscale();
        from.combine(acc_s, |s, bias| fma(bias, factor, s));
    }
}
