//! Parameters of two masks or scores: a mask and its scores, two masks, or two scores.

use crate::Plain;

/// The parameters `a`, then `b`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct And<A, B> {
    /// The first.
    pub a: A,
    /// The second.
    pub b: B,
}

impl<A: Plain, B: Plain> Plain for And<A, B> {
    fn write(&self, to: &mut [u8]) {
        let (a, b) = to.split_at_mut(size_of::<A>());
        self.a.write(a);
        self.b.write(b);
    }
}

impl<A, B> And<A, B> {
    /// Both. Types with padding between them, or behind them, do not compile: a launch copies the bytes.
    pub const fn new(a: A, b: B) -> Self {
        const {
            assert!(
                size_of::<Self>() == size_of::<A>() + size_of::<B>(),
                "the parameters must be multiples of 8 bytes: add a `reserved` field"
            )
        }
        And { a, b }
    }
}
