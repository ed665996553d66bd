//! Traits that only this crate implements.

/// A trait whose functions receive a kernel's capabilities. Other crates cannot implement it, so a crate of
/// masks and scores never has a capability.
pub trait Sealed {}
