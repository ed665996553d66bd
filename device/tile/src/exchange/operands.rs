//! A operands that split groups exchange: each warp has its own part of the k-steps, and receives the parts
//! of its partners, which are the warps of the other groups that have the same rows.
use crate::Block;
use crate::copy::CpAsync;
use crate::group::{SplitGroup, WarpRows};
use crate::mma::{AFrag, Mma};
use crate::pipeline::{Pipeline, Ready};
use crate::shared::{Place, SharedLayout, SharedTile, SharedTiles};
use contract::{Element, Kernel};
use cuda_std::memory::{ld_shared_v4_b32, st_shared_v4_b32};

/// Shared memory for `COUNT` A operands of `M x K` base tiles per warp, for `OF` split groups that share `R`
/// row tiles. A single group exchanges nothing.
pub struct Operands<const COUNT: usize, const R: usize, const M: usize, const K: usize, const OF: usize> {
    base: u32,
}

/// Bytes of four registers of all lanes of a warp.
const QUAD_BYTES: u32 = 512;

// SAFETY: the layout has a part for each warp.
unsafe impl<const COUNT: usize, const R: usize, const M: usize, const K: usize, const OF: usize> Place
    for Operands<COUNT, R, M, K, OF>
{
    const BYTES: usize = if OF == 1 { 0 } else { R / M * OF * Self::WARP_BYTES as usize };
    const ALIGN: usize = QUAD_BYTES as usize;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Operands { base }
    }
}

/// The right to one exchange. It borrows the memory of the exchange, and only a call with a barrier makes
/// one, so a barrier of the block lies between two exchanges.
pub struct Exchange<'o, const COUNT: usize, const R: usize, const M: usize, const K: usize, const OF: usize>(
    &'o mut Operands<COUNT, R, M, K, OF>,
);

/// Another split group, whose tile of a stage this warp reads. No warp can store as its partner.
#[derive(Clone, Copy)]
pub struct Partner<const OF: usize>(SplitGroup<OF>);

impl<E: Element, const R: usize, const C: usize, const OF: usize> SharedTiles<E, R, C, OF> {
    /// The partner's tile.
    #[inline(always)]
    pub fn tile_of(&self, partner: Partner<OF>) -> Ready<'_, SharedTile<E, R, C>> {
        self.tile(partner.0)
    }
}

impl<T: SharedLayout, const S: usize, C: Kernel> Pipeline<T, S, CpAsync<Block<C>>> {
    /// Like [`Pipeline::advance`]. The call's barrier separates the exchange of this stage from the last one.
    #[inline(always)]
    pub fn advance_to_exchange<
        'a,
        const COUNT: usize,
        const R: usize,
        const M: usize,
        const K: usize,
        const OF: usize,
    >(
        &'a mut self,
        operands: &'a mut Operands<COUNT, R, M, K, OF>,
        block: &mut Block<C>,
        refill: impl FnOnce(&T::Slot<CpAsync<Block<C>>>, &Block<C>),
    ) -> (Ready<'a, T>, Exchange<'a, COUNT, R, M, K, OF>) {
        (self.advance(block, refill), Exchange(operands))
    }
}

impl<const COUNT: usize, const R: usize, const M: usize, const K: usize, const OF: usize>
    Operands<COUNT, R, M, K, OF>
{
    const WARP_BYTES: u32 = (COUNT * M * K) as u32 * QUAD_BYTES;

    /// The shared address of this lane's first four words in the part of the warp of `group` with these rows.
    #[inline(always)]
    fn of(&self, rows: WarpRows<R, M>, group: u32) -> u32 {
        self.base + (rows.index() * OF as u32 + group) * Self::WARP_BYTES + rows.warp().lane * 16
    }

    #[inline(always)]
    fn each(mut f: impl FnMut(usize, usize, usize, u32)) {
        for i in 0..COUNT {
            for k in 0..K {
                for m in 0..M {
                    f(i, k, m, ((i * K + k) * M + m) as u32 * QUAD_BYTES)
                }
            }
        }
    }
}

impl<const COUNT: usize, const R: usize, const M: usize, const K: usize, const OF: usize>
    Exchange<'_, COUNT, R, M, K, OF>
{
    /// Passes this warp's operands to its partners. Behind a barrier, calls `f(partner, operands)` for each
    /// partner, in a fixed order.
    #[inline(always)]
    pub fn exchange<E: Mma, C: Kernel>(
        self,
        own: &[AFrag<E, M, K>; COUNT],
        block: &mut Block<C>,
        mut f: impl FnMut(Partner<OF>, &[AFrag<E, M, K>; COUNT]),
    ) {
        if OF == 1 {
            return;
        }
        let (rows, group) = block.split_groups::<R, M, OF>();
        let mine = self.0.of(rows, group.index());
        Operands::<COUNT, R, M, K, OF>::each(|i, k, m, at| {
            // SAFETY: these are this lane's words of the warp's own part. The partners have read the old
            // words before the barrier that `Exchange` proves.
            unsafe { st_shared_v4_b32(mine + at, own[i].registers[k][m]) }
        });
        block.sync();
        for other in group.others() {
            let (from, mut theirs) = (self.0.of(rows, other.index()), [AFrag::zero(); COUNT]);
            Operands::<COUNT, R, M, K, OF>::each(|i, k, m, at| {
                // SAFETY: the partner wrote these words before the barrier, and writes them again only behind
                // another barrier.
                theirs[i].registers[k][m] = unsafe { ld_shared_v4_b32(from + at) };
            });
            f(Partner(other), &theirs)
        }
    }
}
