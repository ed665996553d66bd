//! The accumulators of products in flight.

use crate::{
    memory::POISON,
    op::Product,
    regs::{FULL, Regs},
    wgmma::place,
};

/// Accumulators in flight. While they are in flight, their registers have no values.
#[derive(Debug)]
pub(super) struct Tile<'a> {
    pub product: &'a Product,
    /// The values, `ROWS` of them per column.
    pub values: Vec<f32>,
    /// The number of products that still add to the accumulators.
    pub users: u32,
    /// Index of the call frame that owns the registers.
    pub frame: usize,
}

impl Tile<'_> {
    /// Takes the accumulators of one warp out of its registers, and leaves NaN there.
    pub fn take(&mut self, regs: &mut Regs, member: usize, needed: bool) {
        let columns = self.product.columns;
        for (r, &reg) in self.product.d.iter().enumerate() {
            for (lane, value) in regs.lanes32(reg).iter_mut().enumerate() {
                let (row, column) = place(r, lane);
                self.values[(16 * member + row) * columns + column] = f32::from_bits(*value);
                *value = u32::from_ne_bytes([POISON; 4]);
            }
            if needed {
                regs.missing.set(regs.missing.get() | !regs.init32[reg as usize]);
            }
        }
    }

    /// Puts the accumulators of one warp back into its registers.
    pub fn give(&self, regs: &mut Regs, member: usize) {
        let columns = self.product.columns;
        for (r, &reg) in self.product.d.iter().enumerate() {
            for (lane, value) in regs.lanes32(reg).iter_mut().enumerate() {
                let (row, column) = place(r, lane);
                *value = self.values[(16 * member + row) * columns + column].to_bits();
            }
            regs.init32[reg as usize] = FULL;
        }
    }
}
