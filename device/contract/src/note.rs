//! The note about a work tile that the producer of a persistent block passes to the block's other warps.

/// The words of a note.
pub trait NoteWords: Copy {
    /// Bytes in shared memory, a multiple of 16.
    const BYTES: usize = size_of::<Self>().next_multiple_of(16);
    /// Whether each consumer warp keeps a copy of its note in shared memory, so that the note takes no
    /// registers.
    const IS_KEPT: bool;
}

impl NoteWords for u32 {
    const IS_KEPT: bool = false;
}

impl NoteWords for [[u32; 4]; 3] {
    const IS_KEPT: bool = true;
}

/// Returns the bytes of a note in shared memory, with the copies of this number of consumer warps.
pub const fn note_bytes<N: NoteWords>(warps: usize) -> usize {
    N::BYTES * (1 + if N::IS_KEPT { warps } else { 0 })
}
