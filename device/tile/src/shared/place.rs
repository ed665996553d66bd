//! Places, which are the parts into which a block's shared memory is split. Nothing accesses a place before
//! it is filled.

/// A part of shared memory that no thread has filled yet.
///
/// # Safety
/// - A value accesses no byte outside of the `BYTES` bytes that start at the `base` of [`Place::at`].
pub unsafe trait Place: Sized {
    /// Size in bytes.
    const BYTES: usize;
    /// Alignment in bytes.
    const ALIGN: usize;
    /// The place at shared address `base`.
    ///
    /// # Safety
    /// - `base` is a multiple of `ALIGN`, and `BYTES` bytes of dynamic shared memory from it on belong to no
    ///   other value.
    unsafe fn at(base: u32) -> Self;
}

// SAFETY: the value accesses no byte.
unsafe impl Place for () {
    const BYTES: usize = 0;
    const ALIGN: usize = 1;
    #[inline(always)]
    unsafe fn at(_: u32) -> Self {}
}

// SAFETY: the two places lie one after the other.
unsafe impl<A: Place, B: Place> Place for (A, B) {
    const BYTES: usize = {
        assert!(A::BYTES.is_multiple_of(B::ALIGN), "the second place is misaligned");
        A::BYTES + B::BYTES
    };
    const ALIGN: usize = if A::ALIGN > B::ALIGN { A::ALIGN } else { B::ALIGN };
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        // SAFETY: the caller's promise covers both parts. `BYTES` asserts that the second part is aligned.
        unsafe { (A::at(base), B::at(base + A::BYTES as u32)) }
    }
}
