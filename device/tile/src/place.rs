//! Places in shared memory: what a block's memory is split into. Nobody reads or writes one before it is
//! filled.
use crate::{Block, CpAsync, Ring, SharedLayout, Warp};
use contract::Kernel;
use core::marker::PhantomData;

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

/// A ring for each of `WARPS` warps, which that warp alone fills, waits for and reads.
pub struct PerWarp<T, const S: usize, const WARPS: usize> {
    base: u32,
    what: PhantomData<T>,
}

// SAFETY: `WARPS` rings, one behind the other.
unsafe impl<T: SharedLayout, const S: usize, const WARPS: usize> Place for PerWarp<T, S, WARPS> {
    const BYTES: usize = WARPS * <Ring<T, S, CpAsync<Warp>>>::BYTES;
    const ALIGN: usize = T::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        PerWarp { base, what: PhantomData }
    }
}

/// What a [`PerWarp`] has lent to its warps, to be given back.
pub struct Lent<T, const S: usize, const WARPS: usize> {
    pub(crate) base: u32,
    what: PhantomData<T>,
}

impl<T: SharedLayout, const S: usize, const WARPS: usize> PerWarp<T, S, WARPS> {
    /// This warp's own, and the right to give it back.
    #[inline(always)]
    pub fn lend<K: Kernel>(self, block: &Block<K>) -> (Ring<T, S, CpAsync<Warp>>, Lent<T, S, WARPS>) {
        const { assert!(K::THREADS as usize == WARPS * 32, "a ring for each of the block's warps") }
        let lent = Lent { base: self.base, what: PhantomData };
        // SAFETY: this warp's part of what `self` alone stood for; `Lent` touches nothing before it has the
        // ring back.
        (unsafe { Ring::at(lent.mine(block)) }, lent)
    }
}

impl<T: SharedLayout, const S: usize, const WARPS: usize> Lent<T, S, WARPS> {
    /// Where this warp's ring begins.
    #[inline(always)]
    pub(crate) fn mine<K: Kernel>(&self, block: &Block<K>) -> u32 {
        self.base + block.warp().index * <Ring<T, S, CpAsync<Warp>>>::BYTES as u32
    }
}
