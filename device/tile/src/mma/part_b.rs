//! B operands of which each warp of a block uses only some column groups. Such an operand is in registers or
//! in shared memory.
use crate::mma::{ColFrag, TensorCore};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v2_b32};

/// Shared memory for a B operand of `K` k-steps of `G` groups of 8 columns. This memory has no bytes if each
/// warp holds its part in registers (`HELD`).
pub struct PlacePartB<E, const K: usize, const G: usize, const HELD: bool> {
    base: u32,
    element: PhantomData<E>,
}

/// A warp's part of a B operand: `OWN` of the operand's `G` groups.
pub struct PartB<E, const K: usize, const G: usize, const OWN: usize, const HELD: bool> {
    held: ColFrag<E, K, OWN>,
    /// The shared address of this lane's first word of the part.
    at: u32,
}

// SAFETY: the layout has two words of each lane for each k-step and group, or no bytes.
unsafe impl<E: TensorCore, const K: usize, const G: usize, const HELD: bool> Place
    for PlacePartB<E, K, G, HELD>
{
    const BYTES: usize = if HELD { 0 } else { K * G * 256 };
    const ALIGN: usize = 8;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        PlacePartB { base, element: PhantomData }
    }
}

impl<E: TensorCore, const K: usize, const G: usize, const HELD: bool> PlacePartB<E, K, G, HELD> {
    /// Keeps the operand. The warp's part begins with group `first`. `part` loads the warp's part. `group`
    /// loads one group. If the operand belongs in shared memory, warp `i` writes group `i`, and a barrier
    /// makes all groups readable.
    #[inline(always)]
    pub fn keep<C: Kernel, const OWN: usize>(
        self,
        first: u32,
        part: impl FnOnce() -> ColFrag<E, K, OWN>,
        group: impl FnOnce(u32) -> ColFrag<E, K, 1>,
        block: &mut Block<C>,
    ) -> PartB<E, K, G, OWN, HELD> {
        const { assert!(HELD || G * 32 == C::THREADS as usize, "one group per warp") }
        let Warp { index, lane } = block.warp();
        // A group that does not exist is replaced by another group.
        let at = self.base + first % (G - OWN + 1) as u32 * 256 + lane * 8;
        if HELD {
            return PartB { held: part(), at };
        }
        let mine = group(index);
        for k in 0..K {
            let at = self.base + (k * G) as u32 * 256 + index * 256 + lane * 8;
            // SAFETY: these are this lane's words of the warp's group; the barrier follows.
            unsafe { st_shared_v2_b32(at, mine.0[k][0]) }
        }
        block.sync();
        PartB { held: ColFrag([[[0; 2]; OWN]; K], PhantomData), at }
    }
}

impl<E: TensorCore, const K: usize, const G: usize, const OWN: usize, const HELD: bool>
    PartB<E, K, G, OWN, HELD>
{
    /// The registers of k-step `k`.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize) -> [[u32; 2]; OWN] {
        if HELD {
            return self.held.0[k];
        }
        // SAFETY: the words were written before the barrier in `keep`, and no thread has written them since.
        core::array::from_fn(|g| unsafe { ld_shared_v2_b32(self.at + ((k * G + g) * 256) as u32) })
    }
}
