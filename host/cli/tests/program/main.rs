//! The program: results, every exit code, and every error on one line.
mod cache;
mod common;
mod files;
mod kernels;
mod options;
mod packed;
mod planted;
