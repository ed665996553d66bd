//! B operands that all warps of a block use. A small operand is in registers, a large one in shared memory.
use crate::mma::{ColFrag, TensorCore};
use crate::shared::Place;
use crate::{Block, Warp};
use contract::Kernel;
use core::marker::PhantomData;
use cuda_std::memory::{ld_shared_v2_b32, st_shared_v2_b32};

/// Largest number of registers per lane that hold a B operand. A larger operand would leave too few registers
/// for the accumulator.
const REGISTERS: usize = 48;

/// Shared memory for an [`OperandB`]. This memory has no bytes if the operand is in registers.
pub struct PlaceB<E, const K: usize, const G: usize> {
    base: u32,
    element: PhantomData<E>,
}

/// The B operand of all warps of a block: `K` k-steps of `G` groups of 8 columns.
pub struct OperandB<E, const K: usize, const G: usize> {
    held: ColFrag<E, K, G>,
    /// The shared address of this lane's first word.
    at: u32,
}

// SAFETY: the layout has two words per lane for each k-step and group, or no bytes.
unsafe impl<E: TensorCore, const K: usize, const G: usize> Place for PlaceB<E, K, G> {
    const BYTES: usize = if OperandB::<E, K, G>::SHARED { K * G * 256 } else { 0 };
    const ALIGN: usize = 8;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        PlaceB { base, element: PhantomData }
    }
}

impl<E: TensorCore, const K: usize, const G: usize> PlaceB<E, K, G> {
    /// Keeps `operand`, which every warp has loaded. If the operand belongs in shared memory, the first warp
    /// writes it, and a barrier makes it readable for all warps.
    #[inline(always)]
    pub fn keep<C: Kernel>(self, operand: ColFrag<E, K, G>, block: &mut Block<C>) -> OperandB<E, K, G> {
        let Warp { index, lane } = block.warp();
        let right = OperandB { held: operand, at: self.base + lane * 8 };
        if OperandB::<E, K, G>::SHARED {
            if index == 0 {
                for k in 0..K {
                    for g in 0..G {
                        // SAFETY: these are this lane's words of shared memory that belongs to `self` alone;
                        // the barrier follows.
                        unsafe { st_shared_v2_b32(right.word(k, g), operand.0[k][g]) }
                    }
                }
            }
            block.sync();
        }
        right
    }
}

impl<E: TensorCore, const K: usize, const G: usize> OperandB<E, K, G> {
    const SHARED: bool = K * G * 2 > REGISTERS;

    #[inline(always)]
    fn word(&self, k: usize, g: usize) -> u32 {
        self.at + ((k * G + g) * 256) as u32
    }

    /// The registers of k-step `k`.
    #[inline(always)]
    pub(crate) fn k_step(&self, k: usize) -> [[u32; 2]; G] {
        if Self::SHARED {
            // SAFETY: the first warp wrote the words before the barrier in `keep`, and no thread has written
            // them since.
            core::array::from_fn(|g| unsafe { ld_shared_v2_b32(self.word(k, g)) })
        } else {
            self.held.0[k]
        }
    }
}
