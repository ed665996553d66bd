//! FerroFlash for C and everything that can call C: `include/ferroflash.h` says what each function does.
//!
//! No panic leaves a function, no pointer is trusted to be non-null, and every error is a status with words
//! for it in [`ferroflash_last_error`].
//!
//! A context reads what `ferroflash sweep` kept, as the program `ferroflash` does: measured choices come
//! before the planner's own table.

mod append;
mod args;
mod call;
mod context;
mod decode;
mod decode_plan;
mod entries;
mod forward;
mod merge;
mod version;

pub use append::{AppendArgs, ferroflash_append};
pub use call::{Status, ferroflash_last_error};
pub use context::*;
pub use decode::{DecodeArgs, ferroflash_decode, ferroflash_decode_scratch_size};
pub use decode_plan::*;
pub use entries::{ferroflash_entry_count, ferroflash_entry_name};
pub use forward::{FORWARD_SIZE_V1, ForwardArgs, PlanInfo};
pub use merge::{MergeArgs, StateArgs, ferroflash_merge};
pub use version::*;
