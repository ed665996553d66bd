//! Work tiles whose keys are operands of eight bits, as images of [`spec::QuantiseKv`] or in a KV cache, and
//! the kernels that process them.
use crate::entries::{Run, RunAs};
use crate::forward::ByBlock;
use crate::forward::paged::{CacheTile, find};
use crate::tensors::TensorTile;
use crate::variant::MaskFn;
use crate::work::{SequenceTile, TileNumber};
use attention_tile::{PageWalk, ScalesDown};
use cuda_std::math::opaque;
use spec::{
    AttnInfo, AttnKernel, F32, FwdInt8F16, FwdInt8Fp8, FwdParams, Int8, Kernel, Paged, PagedParams, PerHead,
    Sm80, Varlen, VarlenParams,
};
use tile::copy::TileSource;
use tile::global::GlobalRows;
use tile::group::WarpRows;
use tile::mma::{Mma, RowVec, Unpack};
use tile::shared::{ByteStageSlot, KeyScales, StageImages};
use tile::{Block, Smem};

/// Stages of bytes, which a block copies one after the other, from the last one to the first.
pub trait ByteStages<C: Kernel, const N: usize, const D: usize> {
    /// Starts the copies of stage `n`, which exists. `EDGE` if it is the last stage, whose rows may end.
    fn copy<const EDGE: bool>(&mut self, to: &ByteStageSlot<N, D, D, ByBlock<C>>, n: u32, block: &Block<C>);
}

impl<C: Kernel, const N: usize, const D: usize> ByteStages<C, N, D> for StageImages<N, D> {
    #[inline(always)]
    fn copy<const EDGE: bool>(&mut self, to: &ByteStageSlot<N, D, D, ByBlock<C>>, n: u32, block: &Block<C>) {
        to.copy(self, n, block)
    }
}

/// Stages whose keys lie in a KV cache of integers, and whose values are images.
pub struct PageStages<'t, C: Kernel, const N: usize, const D: usize> {
    k: PageWalk<'t, Int8, N, D, Block<C>>,
    scales: ScalesDown<'t, KeyScales<N>, Block<C>>,
    values: StageImages<N, 0, D>,
}

impl<C: Kernel, const N: usize, const D: usize> ByteStages<C, N, D> for PageStages<'_, C, N, D> {
    #[inline(always)]
    fn copy<const EDGE: bool>(&mut self, to: &ByteStageSlot<N, D, D, ByBlock<C>>, n: u32, block: &Block<C>) {
        let (keys, scales) = to.keys();
        if EDGE {
            keys.copy_edge(&mut self.k, block)
        } else {
            keys.copy_whole(&mut self.k, block)
        }
        self.scales.copy(&scales, n, block);
        to.copy_floats(&self.values, n, block);
    }
}

/// A tile whose keys and values are operands of eight bits.
pub trait ByteTile: TensorTile {
    /// Whether the columns of keys lie in order, instead of that of `byte_of_column`.
    const IN_ORDER: bool;
    /// The stages of the tile's keys and values.
    type Stages<'t, C: Kernel, const N: usize, const D: usize>: ByteStages<C, N, D>
    where
        Self: 't;

    /// The stages, from stage `from` down.
    fn stages<C: Kernel, const N: usize, const D: usize>(
        &self,
        p: &FwdParams,
        from: u32,
        block: &Block<C>,
    ) -> Self::Stages<'_, C, N, D>;

    /// The products of the warp's rows of queries, of the tile that starts with row `row0`, and of what the
    /// keys lack.
    fn of_means<E: Mma + Unpack, const R: usize, const M: usize, const N: usize, const D: usize>(
        &self,
        p: &FwdParams,
        queries: (&GlobalRows<E, D>, u32),
        rows: WarpRows<R, M>,
    ) -> RowVec<M>;
}

/// A tile whose keys are images.
pub trait QuantisedTile: ByteTile {
    /// The images of the tile's keys, and the means of these keys.
    fn images<const N: usize, const D: usize, const DV: usize>(
        &self,
        p: &FwdParams,
    ) -> (StageImages<N, D, DV>, GlobalRows<F32, D>);
}

macro_rules! on_images {
    ($tile:ident) => {
        impl ByteTile for $tile {
            const IN_ORDER: bool = false;
            type Stages<'t, C: Kernel, const N: usize, const D: usize> = StageImages<N, D>;

            #[inline(always)]
            fn stages<C: Kernel, const N: usize, const D: usize>(
                &self,
                p: &FwdParams,
                _: u32,
                _: &Block<C>,
            ) -> StageImages<N, D> {
                self.images(p).0
            }
            #[inline(always)]
            fn of_means<E: Mma + Unpack, const R: usize, const M: usize, const N: usize, const D: usize>(
                &self,
                p: &FwdParams,
                (queries, row0): (&GlobalRows<E, D>, u32),
                rows: WarpRows<R, M>,
            ) -> RowVec<M> {
                let (_, means): (StageImages<N, D>, _) = self.images(p);
                queries.dot(row0, rows, &means)
            }
        }
    };
}
on_images!(TileNumber);
on_images!(SequenceTile);

/// Keys are a cache's integers as they lie, and lack nothing. `v` of the parameters describes the images of
/// values, one per stage.
impl ByteTile for CacheTile<'_, [PerHead; 2]> {
    const IN_ORDER: bool = true;
    type Stages<'t, C: Kernel, const N: usize, const D: usize>
        = PageStages<'t, C, N, D>
    where
        Self: 't;

    #[inline(always)]
    fn stages<C: Kernel, const N: usize, const D: usize>(
        &self,
        p: &FwdParams,
        from: u32,
        block: &Block<C>,
    ) -> PageStages<'_, C, N, D> {
        let [k, _] = self.stored::<Int8, D>(p);
        let [sequence, head] = self.head();
        PageStages {
            k: k.walk(from, block),
            scales: ScalesDown::new(self.row_scales(), from, block),
            values: StageImages::new(&p.v, sequence, head),
        }
    }
    #[inline(always)]
    fn of_means<E: Mma + Unpack, const R: usize, const M: usize, const N: usize, const D: usize>(
        &self,
        _: &FwdParams,
        _: (&GlobalRows<E, D>, u32),
        _: WarpRows<R, M>,
    ) -> RowVec<M> {
        RowVec::splat(0.0)
    }
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
}

/// A kernel on operands of eight bits, which can process any work tile.
pub trait OnBytes: AttnKernel<Isa = Sm80> {
    /// Processes `tile`, under a contract `C` that has the kernel's threads and shared memory. `again`
    /// returns the tile for an epilogue that computes its tensors again: at head dim 128, main loops leave no
    /// register for them.
    fn tile<C: Kernel, P: ByteTile>(
        p: &FwdParams,
        tile: &P,
        again: impl Fn(&Block<C>) -> P,
        block: &mut Block<C>,
        smem: Smem<C>,
    );
}

/// A kernel on images, which can process any work tile.
pub trait OnImages: AttnKernel<Isa = Sm80> {
    /// See [`OnBytes::tile`].
    fn tile<C: Kernel, P: QuantisedTile>(
        p: &FwdParams,
        tile: &P,
        again: impl Fn(&Block<C>) -> P,
        block: &mut Block<C>,
        smem: Smem<C>,
    );
}

macro_rules! on_tensors {
    ($config:ident<$($c:ident),*>: $element:path, $on:ident) => {
        impl<E: $element, Mask: MaskFn<Params = ()>, $(const $c: usize),*> Run for $config<E, Mask, $($c),*>
        where
            E: Mma,
        {
            #[inline(always)]
            fn run(p: FwdParams, mut block: Block<Self>, smem: Smem<Self>) {
                let again = |block: &Block<Self>| TileNumber(opaque(block.index()));
                <Self as $on>::tile(&p, &TileNumber(block.index()), again, &mut block, smem)
            }
        }
        impl<E: $element, Mask: MaskFn<Params = ()>, $(const $c: usize),*> RunAs<Varlen<Self>, Sm80>
            for $config<E, Mask, $($c),*>
        where
            E: Mma,
        {
            #[inline(always)]
            fn run_as(p: VarlenParams, mut block: Block<Varlen<Self>>, smem: Smem<Varlen<Self>>) {
                let AttnInfo { tile_m, head_dim, .. } = <Self as spec::Line>::INFO;
                let found = |index, warp| SequenceTile::of_index(&p, index, tile_m, warp);
                let Some(tile) = found(block.index(), block.warp()) else { return };
                let again = |block: &Block<Varlen<Self>>| match head_dim {
                    ..=128 => tile,
                    // With the tile in registers, ptxas would spill 8 bytes.
                    _ => found(opaque(block.index()), block.warp()).unwrap_or(SequenceTile::NONE),
                };
                <Self as $on>::tile(&p.forward, &tile, again, &mut block, smem)
            }
        }
    };
}
on_tensors!(FwdInt8F16<M, W, N, D, HELD>: Unpack, OnImages);
on_tensors!(FwdInt8Fp8<M, W, N, D, HELD, KEPT>: Mma, OnBytes);

impl<
    E: Mma,
    Mask: MaskFn<Params = ()>,
    const M: usize,
    const W: usize,
    const N: usize,
    const D: usize,
    const HELD: usize,
    const KEPT: usize,
> RunAs<Paged<Self>, Sm80> for FwdInt8Fp8<E, Mask, M, W, N, D, HELD, KEPT>
{
    #[inline(always)]
    fn run_as(p: PagedParams<[PerHead; 2]>, mut block: Block<Paged<Self>>, smem: Smem<Paged<Self>>) {
        let (warp, rows) = (block.warp(), <Self as spec::Line>::INFO.tile_m);
        if let Some((tile, sequence, queries)) = find(&p, block.index(), rows, warp) {
            let tile = CacheTile::of(&p, tile, rows, warp.uniform(sequence), queries, warp);
            <Self as OnBytes>::tile(&p.forward, &tile, |_| tile, &mut block, smem)
        }
    }
}
