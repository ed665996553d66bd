//! A check that parameter structs have no padding: a launch copies their bytes, and padding bytes are
//! uninitialised.

/// Checks at compile time that `#[repr(C)]` structs have no padding. A call names every field.
///
/// ```
/// #[repr(C)]
/// struct Lengths {
///     base: u64,
///     counts: [u32; 2],
/// }
/// contract::no_padding! { Lengths { base, counts } }
/// ```
///
/// ```compile_fail
/// # #[repr(C)]
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
            // A field that is missing here does not compile.
            const _: fn(&Of) = |$name { $($field: _),* }: &Of| {};
            let fields = [$(size(|of: &Of| &of.$field)),*];
            let (mut next, mut bytes) = (0, 0);
            while next < fields.len() {
                bytes += fields[next];
                next += 1;
            }
            let padded = concat!(stringify!($name), " has padding: add a `reserved` field");
            assert!(size_of::<Of>() == bytes, "{}", padded);
        };
    )*};
}
