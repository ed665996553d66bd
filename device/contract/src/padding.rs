//! Parameters as bytes. A launch copies the bytes of parameters, so there must be no padding bytes, whose
//! values are undefined.

/// A value without padding bytes. Numbers and arrays have no padding. [`no_padding!`](crate::no_padding)
/// checks a struct, and implements this trait for the struct.
///
/// ```compile_fail,E0277
/// #[repr(C)]
/// #[derive(Clone, Copy)]
/// struct Lengths {
///     base: u64,
///     count: u32, // four bytes of padding follow
/// }
/// fn launch(_: impl contract::Plain) {}
/// launch(Lengths { base: 0, count: 0 });
/// ```
#[diagnostic::on_unimplemented(
    message = "a launch copies `{Self}` byte by byte, so the type must have no padding",
    label = "may have padding",
    note = "give it `#[repr(C)]`, and list all of its fields behind it: `no_padding! {{ {Self} {{ .. }} }}`"
)]
pub trait Plain: Copy + 'static {
    /// Writes the bytes of the value to `to`, which must have the value's size.
    fn write(&self, to: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            #[inline]
            fn write(&self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32);

impl Plain for () {
    #[inline]
    fn write(&self, _: &mut [u8]) {}
}

impl<T: Plain, const N: usize> Plain for [T; N] {
    #[inline]
    fn write(&self, to: &mut [u8]) {
        to.chunks_exact_mut(size_of::<T>().max(1)).zip(self).for_each(|(to, value)| value.write(to));
    }
}

/// Checks at compile time that `#[repr(C)]` structs have no padding, and implements [`Plain`](crate::Plain)
/// for them. A call must name every field, in order.
///
/// ```
/// #[repr(C)]
/// #[derive(Clone, Copy)]
/// struct Lengths {
///     base: u64,
///     counts: [u32; 2],
/// }
/// contract::no_padding! { Lengths { base, counts } }
/// ```
///
/// ```compile_fail
/// # #[repr(C)]
/// # #[derive(Clone, Copy)]
/// # struct Lengths {
/// #     base: u64,
/// #     count: u32,
/// # }
/// contract::no_padding! { Lengths { base, count } } // four bytes follow `count`
/// ```
#[macro_export]
macro_rules! no_padding {
    ($($name:ident $(<$($arg:ty),*>)? { $($field:ident),* $(,)? })*) => {$(
        const _: () = {
            type Of = $name $(<$($arg),*>)?;
            const fn size<T, F>(_: fn(&T) -> &F) -> usize {
                size_of::<F>()
            }
            // A field that the call omits is a compile error here.
            const _: fn(&Of) = |$name { $($field: _),* }: &Of| {};
            const SIZES: &[usize] = &[$(size(|of: &Of| &of.$field)),*];
            const OFFSETS: &[usize] = &[$(::core::mem::offset_of!(Of, $field)),*];
            let (mut next, mut bytes) = (0, 0);
            while next < SIZES.len() {
                let displaced = concat!(
                    stringify!($name), " has padding, is not `#[repr(C)]`, or lists its fields in another \
                     order: write `#[repr(C)]` above it, and add a `reserved` field where padding would be"
                );
                assert!(OFFSETS[next] == bytes, "{}", displaced);
                bytes += SIZES[next];
                next += 1;
            }
            let padded = concat!(stringify!($name), " has padding: add a `reserved` field");
            assert!(size_of::<Of>() == bytes, "{}", padded);
        };

        impl $crate::Plain for $name $(<$($arg),*>)? {
            #[inline]
            fn write(&self, to: &mut [u8]) {
                let rest = to;
                $(
                    let (own, rest) = rest.split_at_mut(size_of_val(&self.$field));
                    $crate::Plain::write(&self.$field, own);
                )*
                debug_assert!(rest.is_empty());
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::Plain;
    use crate::FastDiv;

    #[test]
    fn bytes_are_those_of_the_fields_in_order() {
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Both {
            base: u64,
            pair: [i32; 2],
            one: FastDiv,
            last: f32,
        }
        crate::no_padding! { Both { base, pair, one, last } }
        let both = Both { base: 1, pair: [-2, 3], one: FastDiv::ONE, last: 0.5 };
        let mut bytes = [0xff; size_of::<Both>()];
        both.write(&mut bytes);
        assert_eq!(bytes[..8], 1u64.to_ne_bytes());
        assert_eq!(bytes[8..12], (-2i32).to_ne_bytes());
        assert_eq!(bytes[12..16], 3i32.to_ne_bytes());
        assert_eq!(bytes[size_of::<Both>() - 4..], 0.5f32.to_ne_bytes());
    }
}
