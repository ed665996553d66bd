//! A CUDA driver library for tests. It has two devices and executes nothing.
//!
//! A test puts it in the place of `libcuda.so.1`. Any crate that opens or links to a driver works with it.
//! The library records the context of every object. It records a *fault* if a program uses an object that is
//! gone, or uses an object in another context, whatever the real driver would do. Tests query the calls, the
//! faults and the remaining objects with the functions of [`mod@report`].

mod api;
mod memory;
mod module;
mod report;
mod state;
mod stream;
