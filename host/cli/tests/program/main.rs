//! Tests the program: its results, every exit code, and every error on one line.
#[cfg(target_os = "linux")]
mod bench;
mod cache;
mod cache_widths;
mod common;
mod e4m3;
#[cfg(target_os = "linux")]
mod ended;
#[cfg(target_os = "linux")]
mod evidence;
#[cfg(target_os = "linux")]
#[path = "../../../tests/fake_cuda/library.rs"]
mod fake_cuda;
mod files;
mod grad;
mod int8;
mod kernels;
mod latent;
mod listed;
mod options;
mod planted;
mod refusals;
mod report;
mod shared_pages;
mod tensors;
mod varlen;
