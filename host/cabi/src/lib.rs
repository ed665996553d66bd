//! FerroFlash for C, and for every language that can call C. `include/ferroflash.h` documents each function.
//!
//! No panic leaves a function. Every function checks pointers for null. Every error is a status, and
//! [`ferroflash_last_error`] returns the error's text.
//!
//! A context reads the measurements of `ferroflash sweep`, as the program `ferroflash` does. The planner
//! prefers these measurements to its own table.

mod append;
mod args;
mod attention;
mod backward;
mod call;
#[cfg_attr(feature = "sim", path = "card/present.rs")]
#[cfg_attr(not(feature = "sim"), path = "card/absent.rs")]
mod card;
mod context;
mod entries;
#[cfg(test)]
mod examples;
mod layout;
mod merge;
mod plan;
mod requests;
mod rotary;
mod simulator;
mod structs;
mod version;

pub use args::Args;
pub use call::{Status, ferroflash_last_error};
pub use context::*;
pub use entries::{ferroflash_entry_count, ferroflash_entry_name};
pub use layout::Field;
pub use plan::*;
pub use requests::*;
pub use simulator::{
    ferroflash_context_create_simulator, ferroflash_simulator_allocate, ferroflash_simulator_free,
    ferroflash_simulator_read, ferroflash_simulator_write,
};
pub use structs::*;
pub use version::*;
