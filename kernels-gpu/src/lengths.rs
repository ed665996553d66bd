//! Integers that stand on the device and that nobody has checked. What is made of them here is right whatever
//! they are: every access stays in the tensors that the host was shown. (What stands in a cache's table is
//! clamped where it is read, and a slot that a cache has not is none, in `tile`.)
use spec::Integers;
use tile::GlobalInts;

/// Length `i`: at most `most`, and 0 where the number is negative or there is none.
#[inline(always)]
pub fn length(lengths: &Integers, i: u32, most: u32) -> u32 {
    (GlobalInts::of(lengths).get(i).max(0) as u32).min(most)
}
