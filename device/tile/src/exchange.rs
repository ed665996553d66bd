//! Exchange of registers and numbers between warps through shared memory.

mod columns;
mod scratch;
mod sums;
mod tally;

pub use columns::ExchangedColumns;
pub use scratch::{Exchanged, FromGroup, Registers, Scratch};
pub use sums::Sums;
pub use tally::{Tallied, Tally};
