//! Stores of results to global memory.

mod store;
mod store_buffer;

pub use store::Spent;
pub use store_buffer::StoreBuffer;
