//! Numbers in a stage, one per element of the consumer warps' accumulators.
use crate::mma::{Acc, Unpack};
use crate::pipeline::Consumer;
use crate::shared::{SharedLayout, SharedTile, SharedTiles};
use crate::tma::TmaTransport;
use contract::Element;
use cuda_std::ldmatrix::ldmatrix_x4;

impl<E: Element + Unpack, const C: usize, const W: usize, const S: usize, By: TmaTransport>
    Consumer<SharedTiles<E, 4, C, W>, S, By>
{
    /// Waits for the next stage, which has a tile of 64 rows per warpgroup. Replaces each value `x` of this
    /// warp's accumulator by `f(x, number of its row and column)`. Then releases the stage.
    ///
    /// `ldmatrix` reads four tiles of 8x8 in the layout of accumulators: one instruction for 16 columns.
    #[inline(always)]
    pub fn combine(&mut self, acc: &mut Acc<1, C>, f: impl Fn(f32, f32) -> f32) {
        self.wait_full();
        let (warp, tile_bytes) = (self.warp, SharedTile::<E, 4, C>::BYTES as u32);
        // SAFETY: the warpgroup's tile of a stage that has landed, which is released below.
        let tile = unsafe { SharedTile::<E, 4, C>::at(self.state.address() + warp.index / 4 * tile_bytes) };
        let rows = tile.columns_first(warp.index % 4 * 16, warp);
        for n in 0..C {
            // SAFETY: `rows` addresses rows of a readable tile, and `Warp` stands for 32 converged lanes.
            let words = unsafe { ldmatrix_x4(rows.tile(0, n)) };
            for half in 0..2 {
                for row in 0..2 {
                    let [a, b] = E::unpack(words[2 * half + row]);
                    let x = &mut acc.0[0][n][half];
                    x[2 * row] = f(x[2 * row], a);
                    x[2 * row + 1] = f(x[2 * row + 1], b);
                }
            }
        }
        // All lanes have read the stage before lane 0 releases it.
        warp.sync();
        self.release();
    }
}
