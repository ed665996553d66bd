//! A CUDA driver library for tests: two devices, nothing runs.
//!
//! A test puts it in the place of `libcuda.so.1`, and any crate that opens or links to a driver works with
//! it. It keeps every object with the context that it belongs to, and objects where a program uses what is
//! gone, or does something in another context: a *fault*, whatever the real driver would have done. Tests
//! ask for what was called, what was objected to, and what is left, by the functions of [`mod@report`].

mod api;
mod memory;
mod module;
mod report;
mod state;
mod stream;
