//! The numbers that work tiles add to the entries of a table.
crate::described! {
    /// One f32 per work tile and entry of a table, `[tile][entry]`, contiguous: what a work tile adds to the
    /// entry. Each work tile writes its numbers, and the last work tile of a head reads those of all.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TilePartials {
        /// Device address of the first number, a multiple of 4.
        base: u64,
        /// Number of entries, at least 1.
        entries: u32,
        /// Number of work tiles, at least 1.
        tiles: u32,
    }
}

crate::no_padding! { TilePartials { base, entries, tiles } }
