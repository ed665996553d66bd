//! Numbers a constant apart, without a division.

/// Numbers `step` apart, from `at` to below `end`; `end + step` stays below 2^32. `Iterator::step_by` divides
/// to know how many there are: 100 cycles before the first.
#[derive(Clone, Copy)]
pub struct Steps {
    /// The next.
    pub at: u32,
    /// From one to the next.
    pub step: u32,
    /// One past the last that may be.
    pub end: u32,
}

impl Iterator for Steps {
    type Item = u32;
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let at = self.at;
        self.at = at.wrapping_add(self.step);
        (at < self.end).then_some(at)
    }
}
