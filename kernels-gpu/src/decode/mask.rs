//! Which keys a row sees: two numbers a row, as everywhere, from lengths on the device.
use core::ops::Range;
use spec::{Causal, DecodeParams, Local, MaskMarker, Window};

/// A mask of decode kernels.
pub trait DecodeMask: MaskMarker {
    /// Whether rows may start after key 0, and scores may be capped.
    const LOCAL: bool;

    /// Keys that query `query` of `queries` sees of `keys`; the start may be below 0, the end too.
    #[inline(always)]
    fn keys(window: &Window, query: u32, queries: u32, keys: u32) -> Range<i32> {
        let at = query as i32 + keys as i32 - queries as i32 + window.shift;
        let start = if Self::LOCAL { at - window.left } else { 0 };
        start..at.saturating_add(window.right + 1).min(keys as i32)
    }

    /// The first tile of 16 keys that some query sees.
    #[inline(always)]
    fn first_tile(p: &DecodeParams, keys: u32) -> u32 {
        if Self::LOCAL { Self::keys(&p.window, 0, p.q.rows, keys).start.max(0) as u32 / 16 } else { 0 }
    }
}

impl DecodeMask for Causal {
    const LOCAL: bool = false;
}
impl DecodeMask for Local {
    const LOCAL: bool = true;
}
