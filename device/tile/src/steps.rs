//! Arithmetic sequences whose length needs no division.

/// The numbers `at`, `at + step`, .. that are below `end`; `end + step` must be below 2^32.
/// `Iterator::step_by` computes its length by a division, which costs 100 cycles before the first item.
#[derive(Clone, Copy)]
pub struct Steps {
    /// The next number.
    pub at: u32,
    /// The difference between two numbers.
    pub step: u32,
    /// The bound, which all numbers are below.
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
