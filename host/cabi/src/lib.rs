//! FerroFlash for C and everything that can call C: `include/ferroflash.h` says what each function does.
//!
//! No panic leaves a function, no pointer is trusted to be non-null, and every error is a status with words
//! for it in [`ferroflash_last_error`].
//!
//! A context reads what `ferroflash sweep` kept, as the program `ferroflash` does: measured choices come
//! before the planner's own table.

mod append;
mod args;
mod attention;
mod call;
mod context;
mod entries;
mod layout;
mod merge;
mod plan;
mod version;

pub use append::{AppendArgs, ferroflash_append};
pub use attention::AttentionArgs;
pub use call::{Status, ferroflash_last_error};
pub use context::*;
pub use entries::{ferroflash_entry_count, ferroflash_entry_name};
pub use layout::Field;
pub use merge::{MergeArgs, StateArgs, ferroflash_merge};
pub use plan::*;
pub use version::*;
