//! Exchange of registers and numbers between warps, through shared memory.

mod columns;
mod joint_b;
mod lane_sums;
mod operands;
mod parts;
mod scratch;
mod shared_words;
mod shares;
mod sums;

pub use columns::ExchangedColumns;
pub use joint_b::JointB;
pub use lane_sums::{LaneSums, OwnSums};
pub use operands::{Exchange, Operands, Partner};
pub use parts::{ExchangedParts, PartOfRows};
pub use scratch::{Exchanged, FromGroup, Registers, Scratch};
pub use shared_words::{SharedWords, WrittenWords};
pub use shares::ExchangedShares;
pub use sums::Sums;
