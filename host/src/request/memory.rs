//! The memory of requests. A request names each buffer by an `M`: by its device address, or by a buffer of a
//! front, which the front resolves to an address for each launch.
use super::AttentionRequest;
use crate::variant::WithVariant;

/// A name of the memory of a request's inputs: a device address (`u64`), or a buffer of a front.
pub trait Memory: Copy {
    /// A variant of your own with its parameters, which may name memory, too.
    type Variant: Copy;

    /// Returns the memory from this number of bytes on.
    #[must_use]
    fn behind(self, bytes: u64) -> Self;
}

impl Memory for u64 {
    type Variant = WithVariant;

    fn behind(self, bytes: u64) -> Self {
        self.wrapping_add(bytes)
    }
}

/// Finds the device memory that `M` names.
pub(crate) trait Resolve<M> {
    type Error;

    /// Returns the address of `memory`, and the number of its elements of `bytes` bytes. `field` is its name
    /// in the request.
    fn resolve(&mut self, field: &'static str, memory: M, bytes: u64) -> Result<(u64, u64), Self::Error>;
}

/// Finds the device memory of a variant of your own.
pub(crate) trait ResolveVariant<V, E> {
    /// Returns the variant for the request of addresses.
    fn variant(&mut self, variant: V, request: &AttentionRequest<'_>) -> Result<WithVariant, E>;
}
