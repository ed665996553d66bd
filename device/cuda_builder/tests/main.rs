//! The builder's tests.
mod common;
mod convergence;
mod device;
mod readme;
mod report;
mod split;
mod std;
