//! Forward attention for Hopper in FlashAttention-3's order (Shah et al. 2024, algorithm 2): a warpgroup
//! copies, the others take turns at issuing products, and S(n) is issued together with O += P(n + 1) V(n +
//! 1). Blocks do tile after tile.
//!
//! - [`forward`]: a tile's first scores run beside the last product of the tile before. [`wide`]: head dims
//!   that leave no shared memory for that. [`split`]: several blocks for one tile, each with a slice of its
//!   keys.
//! - [`mainloop`]: what a block copies, and the key blocks of a tile; both have it. [`portion`]: what of a
//!   problem a tile is of. [`softmax`]: a maximum that is looked for only when it is needed.

pub mod forward;
pub mod mainloop;
pub mod portion;
pub mod softmax;
pub mod split;
pub mod wide;

use portion::Portion;
use spec::{Forward, HopperParams, Kernel};
use tile::{Block, Smem};

/// A kernel's body: what a block does with its portions of the problem.
pub trait Body: Forward {
    /// The portions of a block, as both sides, those who copy and those who compute, find them.
    fn run<I: Iterator<Item: Portion>, C: Kernel<Params = HopperParams>>(
        p: &HopperParams,
        portions: impl Fn(u32, u32) -> I,
        block: Block<C>,
        smem: Smem<C>,
    );
}
