//! Work tiles whose keys are images of [`spec::QuantiseKv`], and the kernels that process them.
use crate::entries::{Run, RunAs};
use crate::tensors::TensorTile;
use crate::variant::MaskFn;
use crate::work::{SequenceTile, TileNumber};
use cuda_std::math::opaque;
use spec::{AttnKernel, F32, FwdInt8F16, FwdInt8Fp8, FwdParams, Kernel, Sm80, Varlen, VarlenParams};
use tile::global::GlobalRows;
use tile::mma::{Mma, Unpack};
use tile::shared::StageImages;
use tile::{Block, Smem};

/// A tile whose keys are images.
pub trait QuantisedTile: TensorTile {
    /// The images of the tile's keys, and the means of these keys.
    fn images<const N: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
    ) -> (StageImages<N, D, DV>, GlobalRows<F32, D>);

    /// This tile, for an epilogue that computes its tensors again: at head dim 128, main loops leave no
    /// register for them.
    fn again<C: Kernel>(&self, block: &Block<C>) -> Self;
}

impl QuantisedTile for TileNumber {
    #[inline(always)]
    fn images<const N: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
    ) -> (StageImages<N, D, DV>, GlobalRows<F32, D>) {
        let tile = p.order.tile(self.0);
        let images = StageImages::new(&p.k, tile.batch, tile.kv_head);
        // Kernels that read no values from memory have the means in their place: with addresses relative to
        // the images, ptxas spills up to 48 bytes.
        let means = if DV > 0 { GlobalRows::new(&p.v, tile.batch, tile.kv_head) } else { images.means(0) };
        (images, means)
    }
    #[inline(always)]
    fn again<C: Kernel>(&self, block: &Block<C>) -> Self {
        TileNumber(opaque(block.index()))
    }
}

/// Sequence `b`, whose keys begin at row `s`, has the images from `s / keys per image + b` on.
impl QuantisedTile for SequenceTile {
    #[inline(always)]
    fn images<const N: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
    ) -> (StageImages<N, D, DV>, GlobalRows<F32, D>) {
        let images = StageImages::new(&p.k, self.tile.batch, self.tile.kv_head);
        (images.skip(self.keys.first() / (N as u32 * 16) + self.sequence), images.means(self.sequence))
    }
    #[inline(always)]
    fn again<C: Kernel>(&self, _: &Block<C>) -> Self {
        *self
    }
}

/// A kernel on images, which can process any work tile.
pub trait OnImages: AttnKernel<Isa = Sm80> {
    /// Processes `tile`, under a contract `C` that has the kernel's threads and shared memory.
    fn tile<C: Kernel, P: QuantisedTile>(p: &FwdParams, tile: &P, block: &mut Block<C>, smem: Smem<C>);
}

macro_rules! on_tensors {
    ($config:ident<$($c:ident),*>: $element:path) => {
        impl<E: $element, Mask: MaskFn<Params = ()>, $(const $c: usize),*> Run for $config<E, Mask, $($c),*>
        where
            E: Mma,
        {
            #[inline(always)]
            fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
                Self::tile(&p, &TileNumber(block.index()), &mut block, smem)
            }
        }
        impl<E: $element, Mask: MaskFn<Params = ()>, $(const $c: usize),*> RunAs<Varlen<Self>, Sm80>
            for $config<E, Mask, $($c),*>
        where
            E: Mma,
        {
            #[inline(always)]
            fn run_as(p: VarlenParams, mut block: Block<Varlen<Self>>, smem: Smem<Varlen<Self>>) {
                let rows = <Self as spec::Line>::INFO.tile_m;
                if let Some(tile) = SequenceTile::of_index(&p, block.index(), rows, block.warp()) {
                    Self::tile(&p.forward, &tile, &mut block, smem)
                }
            }
        }
    };
}
on_tensors!(FwdInt8F16<M, W, N, D, HELD>: Unpack);
on_tensors!(FwdInt8Fp8<M, W, N, D, HELD, KEPT>: Mma);
