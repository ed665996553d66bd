//! Parameters of the kernel that numbers the tiles of a mixed batch.
use super::Lowering;
use crate::lower::tensors::{cu_seqlens_q, tensor};
use crate::place::Place;
use crate::schedule::{NUMBER_TILES, Tiles};
use spec::{FastDiv, Integers, Kernel, NumberTiles, NumberTilesParams};

impl Lowering<'_> {
    /// In a mixed batch, adds the kernel that numbers the tiles of the sequences of many queries. Returns the
    /// numbers, which lie at the start of the workspace.
    pub(super) fn number_tiles(&mut self, tiles: &Tiles) -> Option<Integers> {
        let few = tiles.few?;
        let begins = Integers { base: self.r.scratch.address(), count: self.p.batch as u32 + 1, reserved: 0 };
        let params = NumberTilesParams {
            cu_seqlens_q: cu_seqlens_q(&self.r.queries),
            begins,
            rows: tensor(&self.r.q).rows,
            few,
            tile_m: FastDiv::new(self.kernel.tile_m).unwrap_or(FastDiv::ONE),
            reserved: 0,
        };
        self.launch.step(Place::of(&NUMBER_TILES), NumberTiles::grid(&params), &params, []);
        Some(begins)
    }
}
