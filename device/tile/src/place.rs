//! Places in shared memory: what a block's memory is split into. Nobody reads or writes one before it is
//! filled.

/// What shared memory is split into.
///
/// # Safety
/// - A value of it touches no byte but the `BYTES` from `at`'s `base` on.
pub unsafe trait Place: Sized {
    /// Bytes that it takes.
    const BYTES: usize;
    /// What its first byte's address is a multiple of.
    const ALIGN: usize;
    /// The place.
    ///
    /// # Safety
    /// - `base` is a multiple of `ALIGN` and starts `BYTES` bytes of dynamic shared memory that nothing else
    ///   stands for.
    unsafe fn at(base: u32) -> Self;
}

// SAFETY: two places, one behind the other.
unsafe impl<A: Place, B: Place> Place for (A, B) {
    const BYTES: usize = {
        assert!(A::BYTES.is_multiple_of(B::ALIGN), "the second place begins where it may not");
        A::BYTES + B::BYTES
    };
    const ALIGN: usize = if A::ALIGN > B::ALIGN { A::ALIGN } else { B::ALIGN };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        // SAFETY: the two parts of what the caller promises; where the second begins is asserted in `BYTES`.
        unsafe { (A::at(base), B::at(base + A::BYTES as u32)) }
    }
}
