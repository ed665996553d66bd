//! Combines the parameters of a mask and its scores, of two masks, or of two scores.
use crate::Plain;

/// The parameters `a`, followed by the parameters `b`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct And<A, B> {
    /// The first parameters.
    pub a: A,
    /// The second parameters.
    pub b: B,
}

impl<A: Plain, B: Plain> Plain for And<A, B> {
    #[inline]
    fn write(&self, to: &mut [u8]) {
        const { Self::NO_PADDING }
        let (a, b) = to.split_at_mut(size_of::<A>());
        self.a.write(a);
        self.b.write(b);
    }
}

impl<A, B> And<A, B> {
    /// A compile error for types with padding between or behind them, because a launch copies the bytes.
    const NO_PADDING: () = assert!(
        size_of::<Self>() == size_of::<A>() + size_of::<B>(),
        "two parameters have padding between them: make each a multiple of 8 bytes with a `reserved` field"
    );

    /// Makes the parameters `a`, followed by `b`.
    pub const fn new(a: A, b: B) -> Self {
        const { Self::NO_PADDING }
        And { a, b }
    }
}
