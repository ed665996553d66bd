//! Forward attention for Hopper in FlashAttention-3's order (Shah et al. 2024, algorithm 2): a warpgroup
//! copies, the others take turns at issuing products, and S(n) is issued together with O += P(n + 1) V(n +
//! 1). Blocks do tile after tile.
//!
//! - [`forward`]: a tile's first scores run beside the last product of the tile before. [`wide`]: head dims
//!   that leave no shared memory for that. [`varlen`]: either of them for packed sequences. [`paged`]:
//!   the same with keys in pages. [`split`]: several blocks for one tile, each with a slice of its keys.
//! - [`mainloop`]: what a block copies, and the key blocks of a tile; all have it. [`scheduler`]: what of a
//!   problem a tile is of, and how a block comes by its tiles. [`softmax`]: a maximum that is looked for only
//!   when it is needed.

pub mod forward;
pub mod mainloop;
pub mod paged;
pub mod scheduler;
pub mod softmax;
pub mod split;
pub mod varlen;
pub mod wide;

use scheduler::{ForwardOf, ParamsOf, Scheduler};
use spec::{Forward, Kernel, Sm90a};
use tile::{Block, Smem};

/// A kernel's body: what a block does with its work tiles of the problem.
pub trait Body: Forward<Isa = Sm90a> {
    /// `source` has the work tiles of so many-th of so many blocks.
    fn body<S: Scheduler, C: Kernel<Params: AsRef<ForwardOf<S::Tile>>>>(
        p: &ParamsOf<S>,
        source: impl Fn(u32, u32) -> S,
        block: Block<C>,
        smem: Smem<C>,
    );
}
