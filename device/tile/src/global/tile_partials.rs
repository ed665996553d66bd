//! The numbers that work tiles add to the entries of a table, in global memory.
use crate::group::Capability;
use contract::TilePartials;
use cuda_std::memory::{ld_global_b32, st_global_b32_if};

/// The parts of a table's sums, by work tile.
#[derive(Clone, Copy)]
pub struct GlobalPartials<'p>(&'p TilePartials);

impl<'p> GlobalPartials<'p> {
    /// The numbers that a kernel's parameter describes.
    #[inline(always)]
    pub fn new(partials: &'p TilePartials, _: &impl Capability) -> Self {
        GlobalPartials(partials)
    }

    /// The device address of an entry of a tile, if both exist.
    #[inline(always)]
    fn address(self, tile: u32, entry: u32) -> Option<u64> {
        let within = tile as u64 * self.0.entries() as u64 + entry as u64;
        let exists = tile < self.0.tiles() && entry < self.0.entries();
        exists.then(|| self.0.base().wrapping_add(within * 4))
    }

    /// Returns the number that tile `tile` has stored for an entry, or 0 if one of them does not exist.
    #[inline(always)]
    pub fn get(self, tile: u32, entry: u32) -> f32 {
        // SAFETY: the number exists, and the base is a multiple of 4, as `TilePartials` promises.
        self.address(tile, entry).map_or(0.0, |at| f32::from_bits(unsafe { ld_global_b32(at) }))
    }

    /// Stores what tile `tile` adds to an entry, if both exist and `is_mine` is true.
    #[inline(always)]
    pub fn store(self, tile: u32, entry: u32, x: f32, is_mine: bool) {
        if let Some(at) = self.address(tile, entry).filter(|_| is_mine) {
            // SAFETY: the number exists, and the base is a multiple of 4, as `TilePartials` promises.
            unsafe { st_global_b32_if(at, x.to_bits(), true) }
        }
    }
}
