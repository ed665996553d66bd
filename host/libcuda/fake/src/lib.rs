//! A CUDA driver library and an NCCL for tests. The library has two devices and executes no kernel.
//!
//! A test loads this library in place of `libcuda.so.1`. Every crate that opens a driver or links to one
//! works with it. The library records the context of every object. The library reports a *fault* if a program
//! uses a destroyed object, or an object of another context, even if the real driver would accept it. The
//! functions of [`mod@report`] return the calls, the faults and the objects that were not destroyed.

mod api;
mod memory;
mod module;
mod nccl;
mod report;
mod state;
mod stream;
