//! A head of a sequence, as a value that masks and scores can read and cannot make.

/// A sequence, or slot 0, and one of its query heads or key heads, which exist. Kernels make this value, and
/// masks and scores cannot change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    sequence: u32,
    head: u32,
}

impl Head {
    /// Head `head` of sequence `sequence`.
    ///
    /// # Safety
    /// - The launch has this sequence and this head.
    #[inline(always)]
    pub const unsafe fn new(sequence: u32, head: u32) -> Self {
        Head { sequence, head }
    }

    /// Head `head` of sequence `sequence`, on the host, where loads check their addresses.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn on_host(sequence: u32, head: u32) -> Self {
        Head { sequence, head }
    }

    /// Index of the sequence.
    #[inline(always)]
    pub const fn sequence(self) -> u32 {
        self.sequence
    }

    /// Index of the head.
    #[inline(always)]
    pub const fn head(self) -> u32 {
        self.head
    }
}
