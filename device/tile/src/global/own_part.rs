//! Rows distributed over threads, with eight columns per thread.
use crate::Block;
use crate::global::{LoadEight, StoreEight};
use crate::group::{Capability, sealed::Sealed};
use contract::{Kernel, PartPairs, RowParts, RowValues, Tensor};
use cuda_std::memory::{ld_global_b32, ld_global_v4_b32, st_global_b32, st_global_v4_b32};

/// Eight columns of one row. Two threads of a launch never have the same part, except by [`Self::of_one`].
pub struct OwnPart {
    row: u32,
    part: u32,
}

impl Sealed for OwnPart {}
impl Capability for OwnPart {}

impl OwnPart {
    /// This thread's part, or `None` if the thread has no part.
    #[inline(always)]
    pub fn new<K: Kernel>(dealt: &RowParts, block: &Block<K>) -> Option<Self> {
        let (within, part) = dealt.parts.div_rem(block.thread);
        let row = block.index() * dealt.block_rows + within;
        (within < dealt.block_rows && row < dealt.rows).then_some(OwnPart { row, part })
    }

    /// The index of the part's row among all rows.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        self.row
    }

    /// The index of the part in its row.
    #[inline(always)]
    pub fn part(&self) -> u32 {
        self.part
    }

    /// Two parts of the row instead of this part, if a row was distributed as pairs. No other thread has
    /// these parts, because [`PartPairs`] gives each pair other parts.
    #[inline(always)]
    pub fn pair(self, pairs: &PartPairs) -> [OwnPart; 2] {
        let row = self.row;
        pairs.parts(self.part).map(|part| OwnPart { row, part })
    }

    /// The part with another index, where the `count` pairs behind the range of `pairs` come first, then the
    /// range. No two threads get one part, because each index maps to one other index.
    #[inline(always)]
    pub fn behind_range(self, pairs: &PartPairs, count: u32) -> Self {
        let OwnPart { row, part } = self;
        let part = if part < count {
            part + pairs.pairs
        } else if part < count + pairs.pairs {
            part - count
        } else {
            part
        };
        OwnPart { row, part }
    }

    /// This lane's part of the key (0) or of the value (1), instead of one part of both, if each warp has a
    /// row of at most 16 parts. Lanes 0 to 15 store parts of the key alone, lanes 16 to 31 of the value.
    #[inline(always)]
    pub fn of_one(self) -> (u32, OwnPart) {
        (self.part / 16, OwnPart { row: self.row, part: self.part % 16 })
    }

    /// Calls `make` for each thread's part and, after a block barrier, `store` with the result of `make`.
    /// `store` may therefore overwrite the input of `make`, even within a row.
    #[inline(always)]
    pub fn in_place<K: Kernel, R>(
        dealt: &RowParts,
        block: &mut Block<K>,
        make: impl FnOnce(&OwnPart) -> R,
        store: impl FnOnce(&OwnPart, R),
    ) {
        let made = Self::new(dealt, block).map(|own| (make(&own), own));
        block.sync();
        if let Some((made, own)) = made {
            store(&own, made)
        }
    }

    /// The address of the part, which has `bytes` bytes, in row `[batch, row, head]` of a tensor, if the part
    /// exists there.
    #[inline(always)]
    fn place(&self, tensor: &Tensor, [batch, row, head]: [u32; 3], bytes: u32) -> Option<u64> {
        let at = tensor
            .base
            .wrapping_add((batch as u64).wrapping_mul(tensor.batch_bytes))
            .wrapping_add((head as u64).wrapping_mul(tensor.head_bytes))
            .wrapping_add(row as u64 * tensor.row_bytes as u64)
            .wrapping_add((self.part * bytes) as u64);
        (row < tensor.rows && self.part * bytes < tensor.chunks * 16).then_some(at)
    }

    /// The raw bits of the part in row `[batch, row, head]` of 16-bit elements, or zeros if the part does not
    /// exist.
    #[inline(always)]
    pub fn bits(&self, tensor: &Tensor, of: [u32; 3]) -> [u32; 4] {
        // SAFETY: the part exists, and the base and all strides are multiples of 16, as `Tensor` promises.
        self.place(tensor, of, 16).map_or([0; 4], |at| unsafe { ld_global_v4_b32(at) })
    }

    /// Stores the raw bits of the part in a row of 16-bit elements, if the part exists.
    #[inline(always)]
    pub fn store_bits(&self, tensor: &Tensor, of: [u32; 3], bits: [u32; 4]) {
        if let Some(at) = self.place(tensor, of, 16) {
            // SAFETY: the reason above holds here too.
            unsafe { st_global_v4_b32(at, bits) }
        }
    }

    /// The part in a row of elements `E`, or zeros if the part does not exist. [`LoadEight::widen`] converts
    /// it.
    #[inline(always)]
    pub fn load<E: LoadEight>(&self, tensor: &Tensor, of: [u32; 3]) -> E::Bits {
        // SAFETY: the reason above holds here too.
        self.place(tensor, of, const { 8 * E::BYTES as u32 })
            .map_or(Default::default(), |at| unsafe { E::load_bits(at) })
    }

    /// Rounds `x` and stores it to the part in a row of elements `E`, if the part exists.
    #[inline(always)]
    pub fn store<E: StoreEight>(&self, tensor: &Tensor, of: [u32; 3], x: [f32; 8]) {
        if let Some(at) = self.place(tensor, of, const { 8 * E::BYTES as u32 }) {
            // SAFETY: the reason above holds here too.
            unsafe { E::store_eight(at, x) }
        }
    }

    /// Stores a value of the row, if the caller wants the values. One thread per row stores.
    #[inline(always)]
    pub fn store_value(&self, values: &RowValues, of: [u32; 3], x: f32) {
        if self.part == 0 && values.base != 0 {
            // SAFETY: each row of each head has a value, and base and strides are multiples of 4, as
            // `RowValues` promises.
            unsafe { st_global_b32(value_at(values, of), x.to_bits()) }
        }
    }
}

#[inline(always)]
fn value_at(values: &RowValues, [batch, row, head]: [u32; 3]) -> u64 {
    values
        .base
        .wrapping_add((batch as u64).wrapping_mul(values.batch_bytes))
        .wrapping_add((head as u64).wrapping_mul(values.head_bytes))
        .wrapping_add((row as u64).wrapping_mul(values.row_bytes))
}

/// The value of the row `[batch, row, head]`.
#[inline(always)]
pub fn load_value(values: &RowValues, of: [u32; 3], _: &impl Capability) -> f32 {
    // SAFETY: each row of each head has a value, and base and strides are multiples of 4, as `RowValues`
    // promises.
    f32::from_bits(unsafe { ld_global_b32(value_at(values, of)) })
}
